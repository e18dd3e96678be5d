"""No convolution of the ghost step on a CPU has a weight for each example."""

import jax
import pytest

import dpjax
from dpjax.gradients.platforms import CPU, assumed
from tests.gradients.ghost.cases import get
from tests.gradients.ghost.contract import cast
from tests.gradients.test_sharding import equations


def grouped_convolutions(engine, name, chunk=None):
    case = get(name)
    grads_of = dpjax.per_example_grads(case.loss, engine=engine, chunk=chunk)

    def step(params, batch):
        return grads_of(params, batch).aggregate(lambda n: (1 / (1 + n), n))

    with assumed(CPU):
        program = jax.make_jaxpr(step)(*cast((case.params, case.batch), "float32"))
    found = [e for e in equations(program.jaxpr) if e.primitive.name == "conv_general_dilated"]
    assert found
    return [
        eqn
        for eqn in found
        if eqn.params["feature_group_count"] > 1 or eqn.params["batch_group_count"] > 1
    ]


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("name", ["conv_network", "model_small_cnn", "conv_strided"])
def test_no_convolution_has_a_weight_for_each_example(name, chunk):
    assert not grouped_convolutions("ghost", name, chunk)
    assert not grouped_convolutions("ghost_two_pass", name, chunk)
    assert grouped_convolutions("vmap", name, chunk)
