from tests.support.stacks import save

__all__ = ["save"]
