from tests.pages.reading import browser, reader, shown
from tests.small_file import small, small_path

__all__ = ["browser", "reader", "shown", "small", "small_path"]
