"""Packed images: patches of all images in one list, and a grid that says how many each has in time, height and width.

    pixel_values 80x384, image_grid_thw [[1, 4, 4], [1, 8, 8]]      patches 0 to 15 are the first image, 64 the second

transformers reads the grid with Python loops and attends to each image by itself, so an exporter would fix the number
and the sizes of images to those of the sample. Here the same is said with arithmetic on all patches at once:

    position ids, order of windows      from the patch's place in its image     `place_patches`
    segments of attention               a mask of patches that belong together  `attend_in_segments`

The functions that take the place of those in `transformers.vision_utils` have their signatures. Attention is an
implementation of transformers' `AttentionInterface`, called as those are that know about packed sequences ("flash").

https://huggingface.co/docs/transformers/main/en/attention_interface
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from modelexport.capture.entry_point import replace_forward
from modelexport.capture.loading.third_party import library

# transformers hands the ends of segments to implementations that have this in their name.
_IMPLEMENTATION = "modelexport_flash"
_SEGMENTS = "cu_seq_lens_q"
_GRID_AXES = 3


@dataclass(frozen=True)
class PatchPlaces:
    """Where each patch of a list stands, one element for each.

    frame   number of its first patch in the list
    inside  its number in the frame
    height, width   of its frame, in patches
    """

    frame: torch.Tensor
    inside: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor


def place_patches(grid: torch.Tensor, count: int) -> PatchPlaces:
    """
    grid   time, height and width of each image
    count  of patches in all images: their number is an axis of an input, and need not be computed from the grid

        place_patches([[1, 2, 2], [2, 1, 2]], 8)     frame 0 0 0 0 4 4 6 6, inside 0 1 2 3 0 1 0 1
    """
    patches = torch.arange(count, device=grid.device)
    ends = grid.prod(-1).cumsum(0)
    image = (patches[:, None] >= ends[None]).sum(-1)
    start = (ends - grid.prod(-1))[image]
    height, width = grid[image, 1], grid[image, 2]
    inside = (patches - start) % (height * width)
    return PatchPlaces(patches - inside, inside, height, width)


@dataclass(frozen=True)
class PackedAttention:
    """
    modules  that attend to segments
    forwards their own ones: exporters replace those of some classes by others, for segments of equal length
    configs  that say how they attend
    patches  the input whose first axis counts patches
    """

    modules: tuple[torch.nn.Module, ...]
    forwards: tuple[Any, ...]
    configs: tuple[Any, ...]
    patches: str

    @contextmanager
    def open(self, inputs: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """While this is open, any number of images of any size can be encoded, and the code can be exported."""
        with ExitStack() as stack:
            stack.enter_context(_attending(self.configs, attend_in_segments))
            for module, forward in zip(self.modules, self.forwards, strict=True):
                stack.enter_context(replace_forward(module, forward))
            stack.enter_context(_without_loops(self.modules, inputs[self.patches].shape[0]))
            yield


def find_packed_attention(
    root: torch.nn.Module, call: Any, inputs: Mapping[str, torch.Tensor]
) -> PackedAttention | None:
    """The modules that attend to packed images when `call` is made; None where there are none.

    Every attention has to be one of segments: an implementation that expects them would do something else to others.
    """
    patches = _find_patches(inputs)
    if patches is None:
        return None
    attending: dict[int, torch.nn.Module] = {}
    others: list[torch.nn.Module] = []

    def watch(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _SEGMENTS in kwargs:
            attending[id(module)] = module
        else:
            others.append(module)
        return attend_in_segments(module, *args, **kwargs)

    configs = {id(module.config): module.config for module in root.modules() if _is_configured(module)}
    with suppress(Exception), _attending(tuple(configs.values()), watch), torch.no_grad():
        call(**inputs)
    modules = tuple(attending.values())
    if not modules or others:
        return None
    used = {id(module.config): module.config for module in modules}
    return PackedAttention(modules, tuple(module.forward for module in modules), tuple(used.values()), patches)


def _is_configured(module: torch.nn.Module) -> bool:
    return hasattr(getattr(module, "config", None), "_attn_implementation")


def _find_patches(inputs: Mapping[str, torch.Tensor]) -> str | None:
    """The input with a row for each patch of all grids."""
    for grid in inputs.values():
        if grid.is_floating_point() or grid.dim() != 2 or grid.shape[1] != _GRID_AXES:
            continue
        count = int(grid.prod(-1).sum())
        rows = [name for name, tensor in inputs.items() if tensor.is_floating_point() and len(tensor) == count]
        if rows:
            return rows[0]
    return None


def make_uneven(inputs: Mapping[str, torch.Tensor], patches: str) -> dict[str, torch.Tensor]:
    """The same inputs with a first image that is twice as wide: images of different sizes in one list."""
    rows = inputs[patches]
    grids = {
        name: tensor
        for name, tensor in inputs.items()
        if not tensor.is_floating_point() and tensor.dim() == 2 and int(tensor.prod(-1).sum()) == len(rows)
    }
    name, grid = next(iter(grids.items()))
    wider = grid.clone()
    wider[0, 2] *= 2
    return {**inputs, name: wider, patches: torch.cat([rows[: int(grid[0].prod())], rows])}


@contextmanager
def _attending(configs: tuple[Any, ...], attend: Any) -> Iterator[None]:
    """While this is open, models with these configurations attend by this function."""
    known = library("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    before = [config._attn_implementation for config in configs]
    known[_IMPLEMENTATION] = attend
    for config in configs:
        config._attn_implementation = _IMPLEMENTATION
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation
        known.pop(_IMPLEMENTATION, None)


def attend_in_segments(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in which a token sees those of its segment.

    cu_seq_lens_q   where segments end; one place may be named several times
    """
    mask = attention_mask
    if cu_seq_lens_q is not None:
        places = torch.arange(query.shape[2], device=query.device)
        segment = (cu_seq_lens_q[None] <= places[:, None]).sum(-1)
        mask = (segment[:, None] == segment[None])[None, None]
    attend = library("transformers.integrations.sdpa_attention").sdpa_attention_forward
    chosen = {name: kwargs[name] for name in ("scaling", "dropout", "is_causal") if name in kwargs}
    output: tuple[torch.Tensor, None] = attend(module, query, key, value, mask, **chosen)
    return output


@contextmanager
def _without_loops(modules: tuple[torch.nn.Module, ...], count: int) -> Iterator[None]:
    """While this is open, the code of these modules reads grids by the functions below, wherever it imported them."""
    helpers = library("transformers.vision_utils")
    own = _GridFunctions(count)
    replaced = {
        id(getattr(helpers, name)): function for name, function in own.by_name().items() if hasattr(helpers, name)
    }
    code = {type(module).__module__: sys.modules[type(module).__module__] for module in modules}
    before = [(vars(each), name, value) for each in code.values() for name, value in list(vars(each).items())]
    imported = [item for item in before if id(item[2]) in replaced]
    for namespace, name, value in imported:
        namespace[name] = replaced[id(value)]
    try:
        yield
    finally:
        for namespace, name, value in imported:
            namespace[name] = value


class _GridFunctions:
    """transformers' functions of grids for a list of `count` patches, without loops over images."""

    def __init__(self, count: int) -> None:
        self.count = count

    def by_name(self) -> dict[str, Any]:
        return {
            "get_vision_position_ids": self.number_positions,
            "get_vision_cu_seqlens": self.cut_frames,
            "get_vision_attention_seqlens": lambda grid_thw, _config, **options: (
                self.cut_frames(grid_thw, **options),
                None,
            ),
            "get_vision_window_index": self.order_windows,
            "get_max_seqlen": lambda *_, **__: None,
        }

    def number_positions(
        self,
        grid_thw: torch.Tensor,
        spatial_merge_size: int,
        include_temporal: bool = False,
        kwargs: dict[str, Any] | None = None,
    ) -> torch.Tensor:
        """Row and column of each patch; patches that are merged later follow each other."""
        del kwargs
        patches, merged = place_patches(grid_thw, self.count), spatial_merge_size
        block, rest = patches.inside // merged**2, patches.inside % merged**2
        across = patches.width // merged
        row = block // across * merged + rest // merged
        column = block % across * merged + rest % merged
        if not include_temporal:
            return torch.stack([row, column], dim=-1)
        starts = (grid_thw.prod(-1).cumsum(0) - grid_thw.prod(-1))[None]
        first = torch.where(starts <= patches.frame[:, None], starts, 0).amax(-1)
        return torch.stack([(patches.frame - first) // (patches.height * patches.width), row, column], dim=-1)

    def cut_frames(
        self, grid_thw: torch.Tensor, merge_temporal: bool = False, kwargs: dict[str, Any] | None = None
    ) -> torch.Tensor:
        """Where the segment of each patch starts, frame by frame or image by image."""
        del kwargs
        if merge_temporal:
            return grid_thw.prod(-1).cumsum(0)
        return place_patches(grid_thw, self.count).frame

    def order_windows(
        self,
        grid_thw: torch.Tensor,
        spatial_merge_size: int,
        window_size: int,
        patch_size: int,
        kwargs: dict[str, Any] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Merged patches window by window, and where the window of each patch starts.

        Windows at the end of a row or column are smaller than the others.
        """
        del kwargs
        unit, side = spatial_merge_size**2, window_size // spatial_merge_size // patch_size
        merged = torch.cat([grid_thw[:, :1], grid_thw[:, 1:] // spatial_merge_size], dim=1)
        patches = place_patches(merged, self.count // unit)
        band = patches.inside // (side * patches.width)
        band_height = torch.minimum(patches.height - band * side, torch.full_like(band, side))
        in_band = patches.inside - band * side * patches.width
        column = in_band // (side * band_height)
        window_width = torch.minimum(patches.width - column * side, torch.full_like(band, side))
        in_window = in_band - column * side * band_height
        row = band * side + in_window // window_width
        index = patches.frame + row * patches.width + column * side + in_window % window_width
        starts = patches.frame + patches.inside - in_window
        return index, (starts[:, None] * unit).expand(-1, unit).flatten()
