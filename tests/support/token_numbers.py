"""Random numbers per token, with masks that have gaps, and poison for what masks must hide."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

POISON = (float("nan"), float("inf"), float("-inf"), 1e6, 100.0)


@dataclass(frozen=True)
class TokenNumbers:
    """What PPO knows of a batch; shapes as in `hpcflow.algorithms`."""

    mask_BT: Tensor
    logprobs_BT: Tensor
    old_logprobs_BT: Tensor
    ref_logprobs_BT: Tensor
    advantages_BT: Tensor
    rewards_BT: Tensor
    values_BT: Tensor
    old_values_BT: Tensor
    returns_BT: Tensor
    scores_B: Tensor

    @property
    def count(self) -> float:
        """The number of trainable tokens, or 1 where there are none, to divide by."""
        return float(max(int(self.mask_BT.sum()), 1))

    def rows(self, chosen: slice | Tensor) -> "TokenNumbers":
        """Some of the rows, in the order given."""
        return TokenNumbers(**{name: numbers[chosen] for name, numbers in vars(self).items()})

    def poisoned(self) -> "TokenNumbers":
        """The same batch with other content wherever the mask is False."""
        mask_BT = self.mask_BT
        per_token = {name: x_BT for name, x_BT in vars(self).items() if name.endswith("s_BT")}
        return replace(
            self,
            **{name: poison(x_BT, mask_BT) for name, x_BT in per_token.items()},
            scores_B=torch.where(mask_BT.any(1), self.scores_B, float("nan")),
        )


def poison(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`x_BT` with NaN, infinities and large numbers in turn wherever the mask is False."""
    turn_BT = torch.arange(x_BT.numel()).reshape(x_BT.shape) % len(POISON)
    return torch.where(mask_BT, x_BT, torch.tensor(POISON)[turn_BT])


def gradient(output: Tensor, x: Tensor) -> Tensor:
    """The gradient of a scalar with respect to `x`; raises where `x` is not part of its graph."""
    return torch.autograd.grad(output, x)[0]


def random_numbers(seed: int, rows: int, length: int) -> TokenNumbers:
    """A batch in which about half the tokens train; rows may be empty, column 0 never trains."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(rows, length, generator=generator)

    mask_BT = torch.rand(rows, length, generator=generator) < 0.5
    mask_BT[:, 0] = False
    old_BT = normal(1.0) - 3.0
    return TokenNumbers(
        mask_BT=mask_BT,
        logprobs_BT=old_BT + normal(0.3),
        old_logprobs_BT=old_BT,
        ref_logprobs_BT=old_BT + normal(0.5),
        advantages_BT=normal(1.0),
        rewards_BT=normal(1.0),
        values_BT=normal(1.0),
        old_values_BT=normal(1.0),
        returns_BT=normal(1.0),
        scores_B=normal(1.0)[:, 0],
    )


def token_numbers() -> st.SearchStrategy[TokenNumbers]:
    """Batches of 1 to 5 rows and 2 to 8 tokens, as a hypothesis strategy."""
    return st.builds(
        random_numbers,
        seed=st.integers(0, 2**31),
        rows=st.integers(1, 5),
        length=st.integers(2, 8),
    )
