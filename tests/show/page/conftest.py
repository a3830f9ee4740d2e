from tests.support.page_reading import browser, reader, shown
from tests.support.small_file import small, small_path

__all__ = ["browser", "reader", "shown", "small", "small_path"]
