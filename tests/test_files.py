"""Reading files that may be anything."""

from __future__ import annotations

import os

import pytest

from teccl_msccl.errors import InputError
from teccl_msccl.files import read_bytes


def test_what_has_no_size_is_read_no_further_than_files_may_be_large() -> None:
    """A pipe says that it is empty, as /dev/zero does, which never ends."""
    for length in (1000, 1001):
        source, sink = os.pipe()
        os.write(sink, b"x" * length)
        os.close(sink)
        try:
            if length == 1000:
                assert read_bytes(f"/dev/fd/{source}", "a program", 1000) == b"x" * 1000
            else:
                with pytest.raises(InputError, match="larger than"):
                    read_bytes(f"/dev/fd/{source}", "a program", 1000)
        finally:
            os.close(source)
