"""Deformable convolution, deformable attention and RoIAlign in plain torch: the references of these plugins."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def _bilinear_zeros(planes: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sample planes [..., H, W] at points [..., P] (of the same leading axes); what lies outside is 0."""
    height, width = planes.shape[-2:]
    flat = planes.flatten(-2)
    top, left = y.floor(), x.floor()
    result = torch.zeros_like(y)
    for row, row_weight in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, column_weight in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at = torch.where(inside, row * width + column, 0.0).long()
            values = torch.gather(flat, -1, at)
            result = result + torch.where(inside, values * (row_weight * column_weight).to(planes.dtype), 0.0)
    return result


def deform_conv2d(
    image: torch.Tensor,
    offset: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    offset_groups: int,
    use_mask: int,
) -> torch.Tensor:
    """Convolve ``image`` [N, C, H, W] where ``offset`` [N, 2 * offset_groups * kh * kw, Ho, Wo] moves every sample.

    Offsets are (y, x) pairs per kernel element; ``mask`` [N, offset_groups * kh * kw, Ho, Wo] scales the samples if
    ``use_mask`` is not 0. Zhu et al., "Deformable ConvNets v2"; argument order of ``torchvision::deform_conv2d``.
    """
    batch, channels = image.shape[:2]
    kernel = weight.shape[2:]
    out_height, out_width = offset.shape[2:]
    volume, places = kernel[0] * kernel[1], out_height * out_width
    moved = offset.reshape(batch, offset_groups, volume, 2, places)
    scale = mask.reshape(batch, offset_groups, volume, places) if use_mask else None
    rows = torch.arange(out_height).repeat_interleave(out_width) * stride[0] - padding[0]
    columns = torch.arange(out_width).repeat(out_height) * stride[1] - padding[1]
    planes = image.reshape(batch, offset_groups, channels // offset_groups, *image.shape[2:])
    samples = []
    for k in range(volume):
        y = rows + k // kernel[1] * dilation[0] + moved[:, :, k, 0]
        x = columns + k % kernel[1] * dilation[1] + moved[:, :, k, 1]
        shape = (*planes.shape[:3], places)
        values = _bilinear_zeros(planes, y[:, :, None].expand(shape), x[:, :, None].expand(shape))
        samples.append(values if scale is None else values * scale[:, :, k, None])
    # [N, C, kernel elements, places], channels of all offset groups in a row
    taken = torch.stack(samples, 3).reshape(batch, groups, channels // groups * volume, places)
    matrices = weight.reshape(groups, weight.shape[0] // groups, -1)
    result = torch.einsum("goi,ngip->ngop", matrices, taken).reshape(batch, weight.shape[0], out_height, out_width)
    return result + bias[:, None, None]


def multi_scale_deform_attn(
    value: torch.Tensor, spatial_shapes: torch.Tensor, sampling_locations: torch.Tensor, attention_weights: torch.Tensor
) -> torch.Tensor:
    """Attend to ``value`` [N, S, heads, channels] at a few points of each level.

    Args:
        value: The levels one behind the other; S is the sum of their heights times widths.
        spatial_shapes: [levels, 2] int32, height and width of each level.
        sampling_locations: [N, queries, heads, levels, points, 2], (x, y) from 0 to 1 over the level.
        attention_weights: [N, queries, heads, levels, points].

    Returns:
        [N, queries, heads * channels]. Zhu et al., "Deformable DETR", equation 3.
    """
    batch, _, heads, channels = value.shape
    queries, levels, points = sampling_locations.shape[1], sampling_locations.shape[3], sampling_locations.shape[4]
    result = value.new_zeros(batch, heads, channels, queries)
    start = 0
    for level in range(levels):
        height, width = (int(extent) for extent in spatial_shapes[level])
        part = value[:, start : start + height * width].permute(0, 2, 3, 1)
        planes = part.reshape(batch, heads, channels, height, width)
        start += height * width
        at = sampling_locations[:, :, :, level].permute(0, 2, 1, 3, 4).reshape(batch, heads, 1, queries * points, 2)
        shape = (batch, heads, channels, queries * points)
        x, y = (at[..., axis] * extent - 0.5 for axis, extent in ((0, width), (1, height)))
        values = _bilinear_zeros(planes, y.expand(shape), x.expand(shape)).reshape(*shape[:3], queries, points)
        weights = attention_weights[:, :, :, level].permute(0, 2, 1, 3)[:, :, None]
        result = result + (values * weights).sum(-1)
    return result.permute(0, 3, 1, 2).reshape(batch, queries, heads * channels)


def _bilinear_edges(plane: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sample [C, H, W] at every pair of y [A] and x [B]: edge pixels reach one pixel out, beyond that is 0."""
    height, width = plane.shape[1:]

    def ends(at: torch.Tensor, extent: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        inside = (at >= -1) & (at <= extent)
        at = at.clamp(min=0)
        low = at.long().clamp(max=extent - 1)
        high = (low + 1).clamp(max=extent - 1)
        share = torch.where(low >= extent - 1, 0.0, at - low)
        return low, high, torch.where(inside, 1 - share, 0.0), torch.where(inside, share, 0.0)

    top, bottom, top_share, bottom_share = ends(y, height)
    left, right, left_share, right_share = ends(x, width)
    rows = plane[:, top] * top_share[:, None] + plane[:, bottom] * bottom_share[:, None]
    return rows[:, :, left] * left_share + rows[:, :, right] * right_share


def roi_align(
    features: torch.Tensor,
    rois: torch.Tensor,
    output_size: Sequence[int],
    sampling_ratio: int,
    aligned: int,
    spatial_scale: float,
) -> torch.Tensor:
    """Give the mean of bilinear samples in each bin of each roi: [rois, channels, *output_size].

    ``rois`` are [rois, 5]: index of the image, x0, y0, x1, y1 in units that ``spatial_scale`` brings to pixels. A bin has
    ``sampling_ratio`` samples along each axis, of a ratio of 0 or less as many as it has pixels, rounded up. A roi of
    an image that there is not gives 0.
    """
    result = features.new_zeros(rois.shape[0], features.shape[1], *output_size)
    shift = 0.5 if aligned else 0.0
    for index, roi in enumerate(rois.to(torch.float64)):
        image = float(roi[0])
        if not 0 <= image < features.shape[0]:
            continue
        x0, y0, x1, y1 = (float(edge) * spatial_scale - shift for edge in roi[1:])
        extents = [y1 - y0, x1 - x0] if aligned else [max(y1 - y0, 1.0), max(x1 - x0, 1.0)]
        points = []
        counts = []
        for low, extent, bins in zip((y0, x0), extents, output_size, strict=True):
            size = extent / bins
            count = sampling_ratio if sampling_ratio > 0 else max(-int(-size // 1), 0)
            at = torch.arange(bins)[:, None] * size + (torch.arange(count) + 0.5) * size / max(count, 1)
            points.append((low + at).flatten().to(features.dtype))
            counts.append(count)
        if min(counts) == 0:
            continue
        samples = _bilinear_edges(features[int(image)], *points)
        split = samples.reshape(-1, output_size[0], counts[0], output_size[1], counts[1])
        result[index] = split.mean((2, 4))
    return result
