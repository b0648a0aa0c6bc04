"""Gradients flow from the team's value back to the state, for a state that a network has made."""

import torch

from components.policies.qmix import MonotonicMixer


def test_the_gradient_of_the_state_is_that_of_the_formula() -> None:
    torch.manual_seed(0)
    mixer = MonotonicMixer(3, 5, 4, 6).double()
    q, state = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(mixer(q, state).sum(), state)
    step = 1e-6
    for i in range(5):
        moved = torch.zeros(5, dtype=torch.float64)
        moved[i] = step
        with torch.no_grad():
            slope = (mixer(q, state + moved) - mixer(q, state - moved)).squeeze(1) / (2 * step)
        torch.testing.assert_close(gradient[:, i], slope, rtol=1e-6, atol=1e-7)
