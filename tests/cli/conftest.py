from tests.support.foreign_files import bert_folder, other_weights, plain_exports
from tests.support.small_file import small, small_path
from tests.support.spoiled_files import folder

__all__ = ["bert_folder", "folder", "other_weights", "plain_exports", "small", "small_path"]
