from tests.support.page_reading import browser, reader, shown

__all__ = ["browser", "reader", "shown"]
