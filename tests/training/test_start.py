import subprocess
import sys

import pytest

REHEARSE = """
import sys
import torch
from dragoman.training.start import rehearse_backward

rehearse_backward()
known = set(sys.modules)
weight = torch.ones(3, requires_grad=True)
(2 * weight).sum().backward()
torch.autograd.grad(2 * weight, weight, torch.ones(3))
assert not set(sys.modules) - known, set(sys.modules) - known
"""


@pytest.mark.slow
def test_nothing_is_left_to_import_for_the_first_backward_pass() -> None:
    result = subprocess.run([sys.executable, "-c", REHEARSE], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
