"""What the CUDA runtime prints, as users reported it for PyTorch 1.x to 2.9 (Linux) and for a Windows build."""

MULTINOMIAL_LINUX = (
    "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], "
    "thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed."
)
MULTINOMIAL_WINDOWS = (
    r"C:\actions-runner\_work\pytorch\pytorch\aten\src\ATen\native\cuda\TensorCompare.cu:110: block: [0,0,0], "
    "thread: [0,0,0] Assertion `input[0] != 0` failed."
)
MULTINOMIAL_REPLACEMENT = (
    "/pytorch/aten/src/ATen/native/cuda/MultinomialKernel.cu:216: sampleMultinomialOnce: block: [3,0,0], "
    "thread: [5,0,0] Assertion `!at::_isnan(val)` failed."
)
ZERO_ROW = (
    "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], "
    "thread: [0,0,0] Assertion `invalid multinomial distribution (sum of probabilities <= 0)` failed."
)
INDEX_EMBEDDING = (
    "../aten/src/ATen/native/cuda/Indexing.cu:1239: indexSelectLargeIndex: block: [95,0,0], thread: [64,0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed."
)
INDEX_GATHER = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [500,0,0], "
    "thread: [180,0,0] Assertion `ind >=0 && ind < ind_dim_size && "
    '"vectorized gather kernel index out of bounds"` failed.'
)
INDEX_SCATTER = (
    "/pytorch/aten/src/ATen/native/cuda/ScatterGatherKernel.cu:312: operator(): block: [0,0,0], thread: [53,0,0] "
    'Assertion `idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` failed.'
)
LOSS_TARGET = (
    "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], "
    "thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed."
)
TRIGGERED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
