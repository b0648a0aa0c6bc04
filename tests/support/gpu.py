"""Tests that need a GPU."""

import pytest
import torch

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
"""Marks a test that computes on a GPU. CI has none."""
