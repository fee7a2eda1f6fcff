"""The problems that are timed, and what each costs at least."""

from dataclasses import dataclass, replace

from flashkit import cost

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
TOKENS = 32 * 1024  # of all sequences of a batch together
HIDDEN = 2048  # query heads x D


@dataclass(frozen=True)
class Shape:
    """One attention problem: q (B, Hq, T, D), k and v (B, Hkv, S, D); T = 1 on a decode path.

    path says which table the row belongs to: forward, backward, window, fp32, decode or paged.
    """

    path: str
    batch: int
    q_heads: int
    kv_heads: int
    t: int
    s: int
    d: int
    causal: bool = True
    window: int | None = None
    page: int | None = None
    dtype: str = "bfloat16"

    @property
    def decodes(self) -> bool:
        """Whether one query a sequence reads a cache: bound by memory, not by arithmetic."""
        return self.path in ("decode", "paged")

    @property
    def flops(self) -> int:
        """Operations that count: those on visible pairs, of five matmuls on the backward path."""
        count = cost.backward_flops if self.path == "backward" else cost.flops
        heads = {"batch": self.batch, "heads": self.q_heads}
        return count(self.t, self.s, self.d, window=self.window, causal=self.causal, **heads)

    @property
    def bytes(self) -> int:
        """The fewest bytes: every array of the call once."""
        count = cost.least_backward_bytes if self.path == "backward" else cost.least_bytes
        heads = {"batch": self.batch, "q_heads": self.q_heads, "kv_heads": self.kv_heads}
        return count(self.t, self.s, self.d, itemsize=ITEMSIZE[self.dtype], **heads)

    @property
    def label(self) -> str:
        """The shape in a few words, as the tables print it."""
        heads = f"H{self.q_heads}"
        if self.kv_heads != self.q_heads:
            heads += f"/{self.kv_heads}"
        mask = "" if self.decodes else " causal" if self.causal else " no mask"
        mask += f" window {self.window}" if self.window else ""
        page = f" page {self.page}" if self.page else ""
        length = "S" if self.decodes else "T"
        return f"D{self.d}{mask} B{self.batch} {heads} {length}{short(self.s)}{page}"


def short(n: int) -> str:
    """1024 as "1k"; what is no multiple of 1024 as it is."""
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n)


def prefill(
    d: int, t: int, *, causal: bool = True, window: int | None = None, tokens: int = TOKENS
) -> Shape:
    """T queries on T keys, `tokens` tokens in all, Hq = Hkv = 2048 / D, as papers time it."""
    heads = HIDDEN // d
    path = "window" if window else "forward"
    return Shape(path, max(1, tokens // t), heads, heads, t, t, d, causal, window)


def grouped(t: int, causal: bool) -> Shape:
    """64 query heads on 8 KV heads, D 128, one sequence: a 70B model's prefill."""
    return Shape("forward", 1, 64, 8, t, t, 128, causal)


def backward(forward: Shape) -> Shape:
    """The backward pass of a forward: from o's gradient to dq, dk and dv."""
    return replace(forward, path="backward")


def true_float32(t: int, causal: bool = True) -> Shape:
    """float32 inputs multiplied in float32, D 64."""
    return Shape("fp32", 1, 32, 32, t, t, 64, causal, dtype="float32")


def decode(batch: int, s: int, *, page: int | None = None) -> Shape:
    """One query a sequence, 32 query heads on 8 KV heads, D 128, over a cache of S keys."""
    return Shape("paged" if page else "decode", batch, 32, 8, 1, s, 128, page=page)
