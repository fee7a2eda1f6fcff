"""Calls that reach beneath the public ones: a launcher with settings of its own, or a backward."""

import functools
import importlib
from collections.abc import Callable

import torch
from torch import Tensor

import flashkit
from flashkit.bench.implementations import (
    AUTO,
    CUDNN,
    EFFICIENT,
    FLASH,
    Call,
    Implementation,
    Inputs,
    NotServed,
)
from flashkit.bench.shapes import Shape
from flashkit.contracts import check_kernel_inputs

Options = Callable[[Shape], dict]


def no_options(shape: Shape) -> dict:
    """A launcher's own choice of everything."""
    return {}


def launched(shape: Shape, *, module: str, launcher: str, options: Options = no_options) -> Call:
    """A forward launcher of flashkit.kernels with options that the public call does not offer."""
    fwd = getattr(importlib.import_module(f"flashkit.kernels.{module}"), launcher)
    problem = _problem(shape) | options(shape)

    def call(x: Inputs) -> Tensor:
        return fwd(x.q, x.k, x.v, check_kernel_inputs(x.q, x.k, x.v), **problem)[0]

    return call


def launched_backward(
    shape: Shape, *, module: str, launcher: str, options: Options = no_options
) -> Call:
    """A backward launcher of flashkit.kernels; the forward runs once for each set of inputs."""
    home = importlib.import_module(f"flashkit.kernels.{module}")
    bwd = getattr(home, launcher)
    problem = _problem(shape)
    mask = {"causal": shape.causal, "window": shape.window}

    @functools.cache
    def forward(x: Inputs) -> tuple:
        dims = check_kernel_inputs(x.q, x.k, x.v)
        refusal = home.serves(x.q, x.k, x.v, dims, **mask, scale=problem["scale"])
        if refusal:
            raise NotServed(refusal)
        return *flashkit.flash_attention(x.q, x.k, x.v, **mask, return_lse=True), dims

    def call(x: Inputs) -> tuple[Tensor, ...]:
        o, lse, dims = forward(x)
        return bwd(x.q, x.k, x.v, o, lse, x.do, None, dims, **problem, **options(shape))

    return call


def _problem(shape: Shape) -> dict:
    problem = {"offset": shape.s - shape.t, "causal": shape.causal, "window": shape.window}
    return problem | {"scale": shape.d**-0.5}


def by_autograd(shape: Shape, *, forward: Implementation) -> Call:
    """dq, dk, dv by autograd behind another's forward, which runs once for each set of inputs."""
    attend = forward.call(shape)

    @functools.cache
    def followed(x: Inputs) -> tuple[Tensor, list[Tensor]]:
        leaves = [y.detach().requires_grad_() for y in (x.q, x.k, x.v)]
        return attend(Inputs(*leaves)), leaves

    def call(x: Inputs) -> tuple[Tensor, ...]:
        o, leaves = followed(x)
        return torch.autograd.grad(o, leaves, x.do, retain_graph=True)

    return call


def forward_launcher(
    name: str, module: str, launcher: str, options: Options = no_options
) -> Implementation:
    """One of our forward launchers as a contestant."""
    return _ours(name, launched, module, launcher, options)


def backward_launcher(
    name: str, module: str, launcher: str, options: Options = no_options
) -> Implementation:
    """One of our backward launchers as a contestant."""
    return _ours(name, launched_backward, module, launcher, options)


def _ours(name: str, make: Callable, module: str, launcher: str, options: Options):
    settings = {"module": module, "launcher": launcher, "options": options}
    return Implementation(name, make, settings, ours=True)


def _of(forward: Implementation) -> Implementation:
    """The backward pass that autograd finds behind a forward."""
    return Implementation(
        forward.name, by_autograd, {"forward": forward}, forward.ours, forward.compiles
    )


BACKWARD_CUDNN, BACKWARD_FLASH, BACKWARD_EFFICIENT = map(_of, (CUDNN, FLASH, EFFICIENT))
BACKWARD_TEACHING = backward_launcher("teaching", "backward", "flash_bwd")
BACKWARD_TRITON = backward_launcher("triton", "backward_tuned", "tuned_bwd")
BACKWARD_HOPPER = backward_launcher("hopper", "hopper_backward", "hopper_bwd")
BACKWARD_AUTO = _of(AUTO)  # what a training step gets that asks for nothing
