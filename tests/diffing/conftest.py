from tests.diffing.stacks import save

__all__ = ["save"]
