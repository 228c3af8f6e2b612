"""What the CUDA runtime prints: as users reported it for PyTorch 1.x to 2.9 (Linux) and for a Windows build, and as an
H200 printed it for this project (torch 2.11, November 2026; names with "H200").
"""

PREFIX = "/pytorch/aten/src/ATen/native/cuda/"
WINDOWS = "C:\\actions-runner\\_work\\pytorch\\pytorch\\aten\\src\\ATen\\native\\cuda\\"
BLOCK = "block: [0,0,0], thread: [0,0,0] Assertion"
TENSOR_COMPARE = f"{PREFIX}TensorCompare.cu:112: _assert_async_cuda_kernel: {BLOCK}"

# name -> the line, its kind
ASSERTS = {
    "multinomial, Linux": (
        f"{TENSOR_COMPARE} `probability tensor contains either `inf`, `nan` or element < 0` failed.",
        "multinomial",
    ),
    "multinomial, Windows": (f"{WINDOWS}TensorCompare.cu:110: {BLOCK} `input[0] != 0` failed.\r", "multinomial"),
    "multinomial, old": ("TensorCompare.cu:110: Assertion input[0] != 0 failed", "multinomial"),
    "multinomial, with replacement": (
        f"{PREFIX}MultinomialKernel.cu:216: sampleMultinomialOnce: block: [3,0,0], "
        "thread: [5,0,0] Assertion `!at::_isnan(val)` failed.",
        "multinomial",
    ),
    "index, embedding": (
        "../aten/src/ATen/native/cuda/Indexing.cu:1239: indexSelectLargeIndex: block: [95,0,0], thread: [64,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
        "index",
    ),
    "index, gather": (
        f"{PREFIX}IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [500,0,0], thread: [180,0,0] Assertion "
        '`ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"` failed.',
        "index",
    ),
    "index, scatter": (
        f"{PREFIX}ScatterGatherKernel.cu:312: operator(): block: [0,0,0], thread: [53,0,0] "
        'Assertion `idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` failed.',
        "index",
    ),
    "multinomial of NaN, Inf or zeros, eight draws, H200": (
        f"{PREFIX}MultinomialKernel.cu:112: binarySearchForMultinomial: {BLOCK} "
        "`cumdist[size - 1] > static_cast<scalar_t>(0)` failed.",
        "multinomial",
    ),
    "multinomial of a negative number, eight draws, H200": (
        f"{PREFIX}MultinomialKernel.cu:60: renormRowsL1: {BLOCK} `!(val < zero)` failed.",
        "multinomial",
    ),
    "index, embedding of at most 16 ids, H200": (
        f"{PREFIX}Indexing.cu:1515: indexSelectSmallIndex: {BLOCK} `srcIndex < srcSelectDimSize` failed.",
        "index",
    ),
    "index, embedding of a strided view, H200": (
        f"{PREFIX}ScatterGatherKernel.cu:163: operator(): {BLOCK} "
        '`idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"` failed.',
        "index",
    ),
    "index, EmbeddingBag, H200": (
        f"{PREFIX}EmbeddingBag.cu:149: EmbeddingBag_updateOutputKernel_sum_mean: {BLOCK} "
        '`!has_invalid_index && "Invalid input index in EmbeddingBag: index out of range [0, numRows)"` failed.',
        "index",
    ),
    "target of a loss": (
        f"{PREFIX}Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], "
        "thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        "other",
    ),
    "a row of zeros": (
        f"{TENSOR_COMPARE} `invalid multinomial distribution (sum of probabilities <= 0)` failed.",
        "other",
    ),
}
TRIGGERED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
