"""Convolutions of named models."""

from __future__ import annotations

from search_spaces.kernels.images import window_dims
from search_spaces.records import Workload


def _workload(
    batch: int,
    size: int | tuple[int, int],
    channels: tuple[int, int],
    taps: int | tuple[int, int],
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    *,
    dilation: int = 1,
    groups: int = 1,
    dtype: str = "float16",
) -> Workload:
    """A workload of square images, or of (height, width); channels in and out."""
    height, width = (size, size) if isinstance(size, int) else size
    return Workload.of(
        batch=batch,
        height=height,
        width=width,
        in_channels=channels[0],
        out_channels=channels[1],
        **window_dims(taps, stride, padding, dilation),
        groups=groups,
        dtype=dtype,
    )


#: The distinct layers of ResNet-50 (version 1.5: the 3 x 3 layers have the strides), batch 64.
RESNET_50: tuple[Workload, ...] = (
    _workload(64, 224, (3, 64), 7, 2, 3),
    _workload(64, 56, (64, 64), 1),
    _workload(64, 56, (64, 64), 3, 1, 1),
    _workload(64, 56, (64, 256), 1),
    _workload(64, 56, (256, 64), 1),
    _workload(64, 56, (256, 128), 1),
    _workload(64, 56, (128, 128), 3, 2, 1),
    _workload(64, 56, (256, 512), 1, 2),
    _workload(64, 28, (128, 512), 1),
    _workload(64, 28, (512, 128), 1),
    _workload(64, 28, (128, 128), 3, 1, 1),
    _workload(64, 28, (512, 256), 1),
    _workload(64, 28, (256, 256), 3, 2, 1),
    _workload(64, 28, (512, 1024), 1, 2),
    _workload(64, 14, (256, 1024), 1),
    _workload(64, 14, (1024, 256), 1),
    _workload(64, 14, (256, 256), 3, 1, 1),
    _workload(64, 14, (1024, 512), 1),
    _workload(64, 14, (512, 512), 3, 2, 1),
    _workload(64, 14, (1024, 2048), 1, 2),
    _workload(64, 7, (512, 2048), 1),
    _workload(64, 7, (2048, 512), 1),
    _workload(64, 7, (512, 512), 3, 1, 1),
)
WORKLOADS: tuple[Workload, ...] = (
    *RESNET_50,
    _workload(32, 56, (128, 128), 3, 1, 1, groups=32),  # ResNeXt-50 32x4d
    _workload(32, 14, (512, 512), 3, 1, 1, groups=32),
    _workload(8, 65, (256, 256), 3, 1, 12, dilation=12, dtype="bfloat16"),  # DeepLab-v3
    _workload(16, (1, 3000), (80, 512), (1, 3), 1, (0, 1)),  # Whisper base
    _workload(16, (1, 3000), (512, 512), (1, 3), 2, (0, 1)),
    _workload(64, 224, (3, 1024), 16, 16, dtype="bfloat16"),  # ViT-L/16's patches
    _workload(32, 17, (192, 192), (1, 7), 1, (0, 3), dtype="bfloat16"),  # Inception-v3
    _workload(2, 64, (320, 320), 3, 1, 1),  # Stable Diffusion 1.5's U-Net
    _workload(32, 28, (128, 128), 3, 1, 1, dtype="float32"),  # ResNet-18
    _workload(32, 28, (128, 128), 3, 1, 1, dtype="float32").with_dims(tolerance=1e-3),
    _workload(3, (31, 45), (17, 37), (5, 3), 2, (2, 1), dtype="float32"),
)
