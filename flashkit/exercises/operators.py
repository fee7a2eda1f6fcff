"""What may run while a student's function is watched (see `own_work`), by name."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READY_MADE = ("softmax", "attention")
"""Words in the names of operators that do the exercise."""
AUTOGRAD = "run_backward"
"""The function in which torch.autograd leaves Python, whatever it was called through."""
EMPTY = _words("empty empty_like empty_strided empty_permuted new_empty new_empty_strided")
FRESH = EMPTY | _words(
    "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full arange clone "
    "_to_copy cat stack constant_pad_nd repeat index_select scalar_tensor lift_fresh_copy"
)
"""Operators that give new memory, which gets a fence."""
PLAIN = FRESH | _words(
    "view _unsafe_view reshape _reshape_alias expand permute transpose t squeeze unsqueeze slice "
    "select narrow as_strided alias detach split split_with_sizes chunk unbind unfold diagonal "
    "copy_ fill_ zero_ lift_fresh flip roll where masked_fill mul div add sub rsub neg reciprocal "
    "sqrt rsqrt abs maximum minimum clamp log log2 floor_divide remainder floor ceil eq ne lt le "
    "gt ge isnan isinf isfinite isposinf isneginf logical_not logical_and logical_or bitwise_and "
    "bitwise_or bitwise_not bitwise_xor any all equal is_nonzero _local_scalar_dense is_same_size "
    "resolve_conj resolve_neg record_stream device"
)
"""What torch may do around a kernel; no sum, no product of matrices, no exponential."""
ESCAPES = {"numpy", "tolist", "__array__", "__dlpack__"}
"""Methods that hand a tensor to code that is not watched."""
ELSEWHERE = _words(
    "subprocess.Popen os.system os.fork os.forkpty os.exec os.posix_spawn os.spawn "
    "_thread.start_new_thread _thread.start_joinable_thread"
)
"""Events of Python's audit by which work goes where nobody watches."""
