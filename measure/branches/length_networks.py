"""Networks that branch on tokens, padding and length. See `value_networks.py` for the form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]


def _ids(*shape: int, low: int = 0, high: int = 40, seed: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


class TruncatedToPadding(nn.Module):
    """What is padding in all rows is cut off before pooling over the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(40, 8), nn.Linear(8, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        longest = int(attention_mask.sum(1).max())
        return torch.tanh(self.mix(self.embed(input_ids[:, :longest]))).mean(1)

    def example(self) -> Inputs:
        return {"input_ids": _ids(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.int64)}


class MaskLeftOut(nn.Module):
    """A mask that hides nothing is not applied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(40, 8), nn.Linear(8, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        scores = self.score(hidden).squeeze(-1)
        if not attention_mask.bool().all():
            scores = scores.masked_fill(attention_mask == 0, -1e4)
        return (scores.softmax(-1).unsqueeze(-1) * hidden).sum(1)

    def example(self) -> Inputs:
        return {"input_ids": _ids(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.int64)}


class OneRareToken(nn.Module):
    """One token of fifty, which is not in the example, changes the path."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.plain, self.special = nn.Embedding(50, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed(input_ids).mean(1)
        return self.special(hidden) if (input_ids == 42).any() else self.plain(hidden)

    def example(self) -> Inputs:
        return {"input_ids": _ids(2, 7, low=1, high=30)}


class HighTokens(nn.Module):
    """The largest token is 60 or more; those of the example are small."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.shift = nn.Embedding(100, 6), nn.Parameter(torch.randn(6))

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        if input_ids.max() >= 60:
            hidden = hidden + self.shift
        return hidden.mean(1)

    def example(self) -> Inputs:
        return {"input_ids": _ids(2, 6, high=20)}


class HeadByToken(nn.Module):
    """The first token of the first row chooses the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 6)
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, input_ids: Tensor) -> Tensor:
        head = self.heads[int(input_ids[0, 0].item()) % 3]
        return head(self.embed(input_ids).mean(1))

    def example(self) -> Inputs:
        return {"input_ids": _ids(2, 5, high=30)}


class LongText(nn.Module):
    """Sequences of more than 20 tokens are pooled in another way, inside of a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pool = nn.Embedding(40, 8), _PoolByLength()

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.pool(self.embed(input_ids))

    def example(self) -> Inputs:
        return {"input_ids": _ids(2, 8)}


class _PoolByLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = self.mix(hidden)
        return mixed.max(1).values if hidden.shape[1] > 20 else mixed.mean(1)


class EveryPosition(nn.Module):
    """A Python loop over the tokens: a cell that runs once for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(40, 6), nn.GRUCell(6, 6)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        state = torch.zeros_like(hidden[:, 0])
        for position in range(hidden.shape[1]):
            state = self.cell(hidden[:, position], state)
        return state

    def example(self) -> Inputs:
        return {"input_ids": _ids(2, 5)}
