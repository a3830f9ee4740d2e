"""Turn what the user wrote (a folder, a config.json, a hub id, `package.module:callable`) into a module."""

from __future__ import annotations

from modelexport.capture.loading.dispatch import load_model
from modelexport.capture.loading.loaded import LoadedModel, LoadOptions

__all__ = ["LoadOptions", "LoadedModel", "load_model"]
