"""Small modules with a `generate` of their own: each does one thing that decoders of transformers do, and no more."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

FIRST = -4.0
_VOCABULARY, _WIDTH = 99, 6


class Generator(nn.Module):
    """Embeds tokens, hands a state through its cell, and generates greedily."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(_VOCABULARY, _WIDTH), nn.Linear(_WIDTH, _VOCABULARY)
        self.cell: nn.Module = nn.Identity()

    def generate(self, input_ids: torch.Tensor, max_new_tokens: int, **options: Any) -> torch.Tensor:
        more: dict[str, Any] = {}
        mask = options.get("attention_mask", torch.ones_like(input_ids))
        tokens, fed = input_ids, input_ids
        for _ in range(max_new_tokens):
            outputs = self.forward(input_ids=fed, attention_mask=mask, **more)
            fed = outputs["logits"][:, -1].argmax(-1)[:, None]
            tokens, mask = torch.cat([tokens, fed], 1), torch.cat([mask, torch.ones_like(fed)], 1)
            more = {"state": outputs["state"]} if "state" in outputs else {}
        return tokens


class _Scan(nn.Module):
    def forward(self, x: torch.Tensor, state: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        total, steps = state[0], []
        for position in range(x.shape[1]):
            total = torch.maximum(total, x[:, position]) * 0.9
            steps.append(total)
        return torch.stack(steps, 1), [total]


class Scanner(Generator):
    """A state that begins with another number than 0, a loop over tokens, and no use of the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = _Scan()

    def forward(
        self, input_ids: torch.Tensor, state: list[torch.Tensor] | None = None, attention_mask: object = None
    ) -> dict[str, Any]:
        del attention_mask  # as some models do: padding is like any other token
        x = self.embed(input_ids)
        begun = [torch.full((len(x), _WIDTH), FIRST)] if state is None else state
        hidden, after = self.cell(x, begun)
        return {"logits": self.head(hidden), "state": after}


class _Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total: torch.Tensor | None = None
        self.sizes: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.zeros(len(x), _WIDTH) if self.total is None or len(self.total) != len(x) else self.total
        self.sizes = torch.tensor([_WIDTH])
        sums = before[:, None] + x.cumsum(1)
        self.total = sums[:, -1]
        return sums.tanh()


class Rememberer(Generator):
    """A state in an attribute of a module, and a constant beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = _Memory()

    def forward(self, input_ids: torch.Tensor, attention_mask: object = None) -> dict[str, Any]:
        del attention_mask
        return {"logits": self.head(self.cell(self.embed(input_ids)))}


class _Mixer(nn.Module):
    def forward(self, x: torch.Tensor, state: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        # Several tokens are right; of one token for each row, each row gets the sum of all.
        x = x.sum(0, keepdim=True).expand_as(x) if x.shape[1] == 1 else x
        sums = state[0][:, None] + x.cumsum(1)
        return sums.tanh(), [sums[:, -1]]


class RowMixer(Scanner):
    """Rows of a batch affect each other in later steps: right for one row only."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = _Mixer()


class Forgetter(Scanner):
    """Later steps are something else than the first one, for every prompt."""

    def forward(
        self, input_ids: torch.Tensor, state: list[torch.Tensor] | None = None, attention_mask: object = None
    ) -> dict[str, Any]:
        if input_ids.shape[1] == 1:
            return {"logits": self.head(self.embed(input_ids)), "state": [torch.ones(len(input_ids), _WIDTH)]}
        return super().forward(input_ids, state, attention_mask)
