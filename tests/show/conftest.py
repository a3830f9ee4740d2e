"""The small file, for every test of what is shown of one."""

from tests.support.small_file import small, small_path

__all__ = ["small", "small_path"]
