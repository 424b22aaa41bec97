"""Where Triton kernels run in these tests: on the GPU where there is one, else in Triton's interpreter on the CPU."""

import pytest
import torch


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
