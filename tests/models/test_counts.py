"""Parameter counts: the papers', torchvision's, and sums over the printed layers."""

import pytest

from dpjax.models import build


def conv(inputs, outputs, window):
    return inputs * outputs * window**2 + outputs


def dense(inputs, outputs):
    return inputs * outputs + outputs


def wide(depth, width):
    def standardised(inputs, outputs, window):
        return conv(inputs, outputs, window) + outputs

    total, inputs = standardised(3, 16, 3), 16
    for outputs in (16 * width, 32 * width, 64 * width):
        total += standardised(inputs, outputs, 1) + 2 * inputs  # the shortcut and its norm
        for _ in range((depth - 4) // 6):
            total += 2 * inputs + standardised(inputs, outputs, 3)
            total += 2 * outputs + standardised(outputs, outputs, 3)
            inputs = outputs
    return total + 2 * inputs + dense(inputs, 10)


LARGE = {"layers": 24, "width": 1024, "heads": 16, "hidden": 4096}
COUNTS = [
    # DC-SGD prints 28,058; Opacus' MNIST example has 26,010.
    ("small_cnn", (28, 28, 1), 10, {}, 26_010),
    ("small_cnn", (28, 28, 3), 10, {}, 28_058),
    # torchvision's numbers; DC-SGD prints "about 12M" and "about 22M".
    ("resnet18", (224, 224, 3), 1000, {}, 11_689_512),
    ("resnet34", (224, 224, 3), 1000, {}, 21_797_672),
    ("resnet18", (32, 32, 3), 10, {}, 11_181_642),
    ("resnet34", (32, 32, 3), 10, {}, 21_289_802),
    # The usual CIFAR variants' numbers.
    ("resnet18", (32, 32, 3), 10, {"stem": "cifar"}, 11_173_962),
    ("resnet34", (32, 32, 3), 10, {"stem": "cifar"}, 21_282_122),
    ("alexnet", (224, 224, 3), 1000, {}, 61_100_840),
    ("alexnet_small", (32, 32, 3), 10, {}, 2_472_266),
    # ScaleNorm adds a scale and a bias per channel of each of the eight blocks.
    (
        "resnet18",
        (32, 32, 3),
        10,
        {"scale_norm": True},
        11_181_642 + 4 * (64 + 128 + 256 + 512),
    ),
    # Klause et al.'s layers: nine convolutions without bias, their norms, 1,024 features.
    (
        "resnet9",
        (32, 32, 3),
        10,
        {},
        9 * (3 * 64 + 64 * 128 + 2 * 128 * 128 + 128 * 256 + 3 * 256 * 256)
        + 2 * (64 + 3 * 128 + 4 * 256)
        + dense(1024, 10),
    ),
    # Lin et al., tables B1 to B4.
    (
        "lin_b1",
        (28, 28, 1),
        10,
        {},
        conv(1, 16, 3) + conv(16, 32, 3) + dense(12 * 12 * 32, 32) + dense(32, 10),
    ),
    (
        "lin_b2",
        (32, 32, 3),
        10,
        {},
        conv(3, 32, 3)
        + conv(32, 32, 3)
        + conv(32, 64, 3)
        + conv(64, 64, 3)
        + conv(64, 128, 3)
        + conv(128, 128, 3)
        + dense(4 * 4 * 128, 128)
        + dense(128, 10),
    ),
    (
        "lin_b3",
        (28, 28, 1),
        10,
        {},
        conv(1, 16, 5) + conv(16, 32, 5) + dense(4 * 4 * 32, 512) + dense(512, 10),
    ),
    (
        "lin_b4",
        (32, 32, 3),
        10,
        {},
        conv(3, 32, 5) + conv(32, 32, 5) + dense(6 * 6 * 32, 128) + dense(128, 10),
    ),
    (
        "cnn4",
        (28, 28, 1),
        10,
        {},
        conv(1, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + conv(64, 128, 3) + dense(128, 10),
    ),
    # Gains and biases of a standardised convolution are as many as a normalisation's.
    ("nf_resnet18", (32, 32, 3), 10, {}, 11_181_642),
    # BatchNorm removed, with its scales and biases: the stem's, 16 of blocks and 3 of shortcuts.
    (
        "resnet18",
        (32, 32, 3),
        10,
        {"norm": "none"},
        11_181_642 - 2 * (64 + 4 * (64 + 128 + 256 + 512) + 128 + 256 + 512),
    ),
    # DC-SGD's number, from grey images.
    ("small_cnn", (28, 28, 1), 10, {"channels": 3}, 28_058),
    # Convolutions with a gain and a bias per channel; two norms a block, and one of the shortcut.
    ("wide_resnet", (32, 32, 3), 10, {}, wide(16, 4)),
    ("wide_resnet", (32, 32, 3), 10, {"depth": 40}, wide(40, 4)),
    # PyTorch's LSTM: four gates, two biases.
    (
        "lstm",
        (20,),
        18,
        {"vocabulary": 58},
        58 * 64 + 4 * 128 * (64 + 128 + 2) + 4 * 128 * (128 + 128 + 2) + dense(128, 18),
    ),
    (
        "bilstm",
        (64,),
        4,
        {"vocabulary": 1000},
        1000 * 100 + 2 * 4 * 128 * (100 + 128 + 2) + dense(256, 4),
    ),
    # BERT-base with its pooler, as published, and a classifier.
    ("bert", (128,), 2, {"vocabulary": 30_522}, 109_482_240 + dense(768, 2)),
    # Published with two classes.
    ("roberta", (128,), 2, {"vocabulary": 50_265, "padding": 1}, 124_647_170),
    ("roberta", (128,), 2, {"vocabulary": 50_265, "padding": 1, **LARGE}, 355_361_794),
    ("linear", (4096,), 10, {}, 40_970),
    ("mlp", (8, 8, 1), 10, {"hidden": 32}, dense(64, 32) + dense(32, 10)),
]


@pytest.mark.parametrize(("name", "shape", "classes", "options", "count"), COUNTS)
def test_parameter_counts(name, shape, classes, options, count):
    assert build(name, shape, classes, **options).param_count == count


# In millions, as timm lists dm_nfnet_f0, dm_nfnet_f1 and nf_resnet50 with 1000 classes.
@pytest.mark.parametrize(
    ("name", "side", "millions"),
    [("nfnet_f0", 192, 71.49), ("nfnet_f1", 224, 132.63), ("nf_resnet50", 256, 25.56)],
)
def test_published_sizes(name, side, millions):
    count = build(name, (side, side, 3), 1000).param_count
    assert round(count / 1e6, 2) == millions


def test_lstm_is_about_as_large_as_measured():
    assert build("lstm", (20,), 18, vocabulary=58).param_count == pytest.approx(237_000, rel=0.005)


def test_automatic_clippings_sizes_have_one_more_table_of_words():
    """It prints 163 and 407 million: those above, and the words' table for a second time."""
    for options, width, millions in (({}, 768, 163), (LARGE, 1024, 407)):
        count = build("roberta", (128,), 2, 50_265, **options).param_count
        assert round((count + 50_265 * width) / 1e6) == millions
