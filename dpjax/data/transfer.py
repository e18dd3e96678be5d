"""Downloads one file over HTTP, continuing an earlier attempt that was interrupted."""

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["Progress", "check_address", "transfer"]

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes received, and the bytes expected, if known."""

_CHUNK = 1 << 16


def check_address(field: str, url: str) -> None:
    """Raises ValueError unless `url` is an HTTP address; a file's path is not."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{field} = {url!r}: expected an address with http:// or https://")


def transfer(
    url: str, part: Path, size: int | None, timeout: float, progress: Progress | None = None
) -> None:
    """Downloads a file to `part`, which keeps what was received if the connection breaks.

    Args:
        url: the address.
        part: the partial file; its content is kept, and only the rest is requested (HTTP Range).
        size: the number of bytes expected; None takes the server's word.
        timeout: seconds without an answer before giving up.
        progress: called with the progress so far.
    """
    start = part.stat().st_size if part.exists() else 0
    if size is not None and start == size:
        return
    if size is not None and start > size:
        start = 0
    request = urllib.request.Request(url, headers={"User-Agent": "dpjax"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            _receive(response, url, part, start, size, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # there is nothing after what was received
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return
            part.unlink()
            return transfer(url, part, size, timeout, progress)
        raise OSError(f"{url}: the server answers {error.code} ({error.reason})") from error
    except TimeoutError as error:
        raise OSError(_broken(url, part, f"no answer within {timeout:g} s")) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise OSError(_broken(url, part, f"no answer within {timeout:g} s")) from error
        raise OSError(f"{url}: cannot be reached ({error.reason})") from error
    except (http.client.HTTPException, ConnectionError) as error:
        raise OSError(_broken(url, part, f"interrupted ({error})")) from error


def _receive(
    response: http.client.HTTPResponse,
    url: str,
    part: Path,
    start: int,
    size: int | None,
    progress: Progress | None,
) -> None:
    # A server that ignores the range sends everything (200): then the file starts over.
    continued = response.status == 206 and _first_byte(response) == start
    if response.status == 206 and not continued:
        raise OSError(f"{url}: the server sends another part than byte {start} and after")
    done = start if continued else 0
    if size is None and response.length is not None:
        size = done + response.length
    with part.open("ab" if continued else "wb") as file:
        while data := response.read(_CHUNK):
            done += len(data)
            if size is not None and done > size:
                raise OSError(f"{url}: sends more than the {size} bytes that were expected")
            file.write(data)
            if progress is not None:
                progress(urlsplit(url).path.rpartition("/")[2], done, size)
    if size is not None and done < size:
        raise OSError(_broken(url, part, f"interrupted after {done} of {size} bytes"))


def _first_byte(response: http.client.HTTPResponse) -> int | None:
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _broken(url: str, part: Path, why: str) -> str:
    kept = part.stat().st_size if part.exists() else 0
    again = "; the same command continues from there" if kept else ""
    return f"{url}: {why}{again}"
