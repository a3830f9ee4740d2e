from tests.cli.foreign import bert_folder, other_weights, plain_exports
from tests.cli.spoiling import folder
from tests.small_file import small, small_path

__all__ = ["bert_folder", "folder", "other_weights", "plain_exports", "small", "small_path"]
