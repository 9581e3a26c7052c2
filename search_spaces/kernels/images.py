"""What convolutions of images share: dims of windows, their checks, sizes and torch's calls.

Images are x[batch, height, width, channels], so that channels are neighbours in memory. Kernels
have kernel_h x kernel_w taps, `dilation` pixels apart. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.errors import WorkloadError
from search_spaces.records import Workload

if TYPE_CHECKING:
    import torch

#: The largest side, channel or batch.
MOST_SIZE = 65535
#: Output pixels of a launch, whose numbers are 32-bit integers up to a block beyond the last.
_MOST_PIXELS = 2**31 - 2**16
#: The dims of windows.
WINDOW_DIMS = Dims(
    kernel_h=64, kernel_w=64, stride=64, padding_h=range(65), padding_w=range(65), dilation=64
)


@dataclass(frozen=True, slots=True)
class Windows:
    """Images and the windows that a convolution takes of them."""

    #: Images, and pixels of one.
    batch: int
    height: int
    width: int
    #: Taps of the kernel.
    kernel_h: int
    kernel_w: int
    #: Pixels between windows, zeros around an image, and pixels between taps.
    stride: int
    padding_h: int
    padding_w: int
    dilation: int

    @property
    def spans(self) -> tuple[int, int]:
        """Height and width of a window in pixels."""
        return (
            self.dilation * (self.kernel_h - 1) + 1,
            self.dilation * (self.kernel_w - 1) + 1,
        )

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.padding_h - self.spans[0]) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.padding_w - self.spans[1]) // self.stride + 1

    @property
    def pixels(self) -> int:
        """Pixels of all results."""
        return self.batch * self.out_height * self.out_width

    @property
    def padded(self) -> bool:
        return self.padding_h > 0 or self.padding_w > 0

    def flattened(self) -> Windows:
        """The same results, as one row of pixels where every window is one pixel of a dense image.

        A convolution of 1 x 1 taps is a matrix product; of the images it needs the pixels only.
        """
        single = self.kernel_h == self.kernel_w == self.stride == 1 and not self.padded
        return replace(self, batch=1, height=1, width=self.pixels) if single else self

    def constants(self) -> dict[str, Any]:
        """The sizes as constants of a launch."""
        return {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "OUT_HEIGHT": self.out_height,
            "OUT_WIDTH": self.out_width,
            "KERNEL_H": self.kernel_h,
            "KERNEL_W": self.kernel_w,
            "STRIDE": self.stride,
            "PADDING_H": self.padding_h,
            "PADDING_W": self.padding_w,
            "DILATION": self.dilation,
        }


def windows_of(workload: Workload) -> Windows:
    """The images and windows of a workload."""
    return Windows(*(workload.size(name) for name in ("batch", "height", "width", *WINDOW_DIMS)))


def check_windows(kernel: str, workload: Workload) -> None:
    """Raise `WorkloadError` where the images have no window, or too many."""
    where, windows = f"{kernel} [{workload.key}]", windows_of(workload)
    if min(windows.out_height, windows.out_width) < 1:
        raise WorkloadError(
            f"{where}: a window of {windows.spans[0]} x {windows.spans[1]} pixels is larger than "
            "the padded image",
            "give a smaller kernel, less dilation or more padding",
        )
    if windows.pixels > _MOST_PIXELS:
        raise WorkloadError(
            f"{where}: the result has {windows.pixels} pixels, more than {_MOST_PIXELS}",
            "give a smaller batch",
        )


def small_images(workload: Workload) -> Workload:
    """Two images of at least 3 x 5 windows; sides that the stride divides stay so."""
    windows = windows_of(workload)
    paddings, stride = (windows.padding_h, windows.padding_w), windows.stride
    sides = []
    for name, span, padding, count in zip(
        ("height", "width"), windows.spans, paddings, (3, 5), strict=True
    ):
        side = max(span - 2 * padding, 1) + (count - 1) * stride + 1
        whole = workload.size(name) % stride == 0
        sides.append(-(-side // stride) * stride if whole else side)
    return workload.with_dims(batch=2, height=sides[0], width=sides[1])


def window_dims(
    taps: int | tuple[int, int], stride: int, padding: int | tuple[int, int], dilation: int = 1
) -> Mapping[str, int]:
    """Dims of windows: taps and padding of both directions, or (vertical, horizontal)."""
    taps_h, taps_w = (taps, taps) if isinstance(taps, int) else taps
    padding_h, padding_w = (padding, padding) if isinstance(padding, int) else padding
    values = (taps_h, taps_w, stride, padding_h, padding_w, dilation)
    return dict(zip(WINDOW_DIMS, values, strict=True))


def convolved(x: torch.Tensor, weight: torch.Tensor, windows: Windows, groups: int) -> torch.Tensor:
    """The convolution by plain torch: x[batch, height, width, channels] and
    weight[out_channels, kernel_h, kernel_w, channels / groups], the layouts of channels_last."""
    import torch

    images, weights = x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    padding = (windows.padding_h, windows.padding_w)
    out: torch.Tensor = torch.nn.functional.conv2d(
        images, weights, None, windows.stride, padding, windows.dilation, groups
    )
    return out.permute(0, 2, 3, 1)


def cudnn_convolved(
    x: torch.Tensor, weight: torch.Tensor, windows: Windows, groups: int, tf32: bool
) -> torch.Tensor:
    """The same by cuDNN, whose fastest algorithm is chosen by measuring at the first call.

    Raises `RuntimeError` where there is no CUDA tensor or no cuDNN.
    """
    import torch

    if x.device.type != "cuda":
        raise RuntimeError(f"cuDNN needs CUDA tensors, got one on {x.device.type}")
    cudnn: Any = torch.backends.cudnn
    if torch.version.hip or not cudnn.is_available():
        raise RuntimeError("cuDNN needs a torch that is built with it")
    out: torch.Tensor = torch.cudnn_convolution(
        x.permute(0, 3, 1, 2),
        weight.permute(0, 3, 1, 2),
        [windows.padding_h, windows.padding_w],
        [windows.stride, windows.stride],
        [windows.dilation, windows.dilation],
        groups,
        benchmark=True,
        deterministic=False,
        allow_tf32=tf32,
    )
    return out.permute(0, 2, 3, 1)
