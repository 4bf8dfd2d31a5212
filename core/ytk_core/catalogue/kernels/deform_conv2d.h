// Deformable convolution, version 2 (modulated): Zhu et al., "Deformable ConvNets v2", section 3.
namespace ytk_catalogue {

struct DeformShape {
  int64_t batch, channels_in, height, width, channels_out, out_height, out_width, groups, offset_groups;
  int32_t kernel[2], stride[2], padding[2], dilation[2];
  int32_t use_mask;
};

// One element of the columns: input channel `channel`, kernel element k, output place `at`, of one image.
template <class T>
YTK_BODY float deform_column(const T* image, const float* offset, const T* mask, const DeformShape& shape,
                             int64_t channel, int32_t k, int64_t at) {
  const int64_t places = shape.out_height * shape.out_width;
  const int32_t volume = shape.kernel[0] * shape.kernel[1];
  const int64_t group = channel / (shape.channels_in / shape.offset_groups);
  const int64_t element = group * volume + k;
  const int32_t row = int32_t(at / shape.out_width), column = int32_t(at % shape.out_width);
  const float y = float(row * shape.stride[0] - shape.padding[0] + k / shape.kernel[1] * shape.dilation[0]) +
                  offset[2 * element * places + at];
  const float x = float(column * shape.stride[1] - shape.padding[1] + k % shape.kernel[1] * shape.dilation[1]) +
                  offset[(2 * element + 1) * places + at];
  const float value = sample_zeros(image + channel * shape.height * shape.width, 1, int32_t(shape.height),
                                   int32_t(shape.width), y, x);
  return shape.use_mask ? value * to_float(mask[element * places + at]) : value;
}

#ifndef __CUDACC__

// Reads the attributes and checks the tensors against them; an enum ytk_status.
inline int read_deform(const ytk_context* ctx, const ytk_tensor* in, const ytk_tensor* out, DeformShape* shape) {
  int64_t stride[2], padding[2], dilation[2], groups, offset_groups, use_mask;
  if (!read_ints(ctx, "stride", stride, 2) || !read_ints(ctx, "padding", padding, 2) ||
      !read_ints(ctx, "dilation", dilation, 2) || !read_ints(ctx, "groups", &groups, 1) ||
      !read_ints(ctx, "offset_groups", &offset_groups, 1) || !read_ints(ctx, "use_mask", &use_mask, 1))
    return YTK_BAD_ATTRIBUTE;
  const int64_t* image = in[0].dims;
  const int64_t* offset = in[1].dims;
  const int64_t* weight = in[2].dims;
  for (int d = 0; d < 2; ++d) {
    if (stride[d] < 1 || stride[d] > 255 || padding[d] < 0 || padding[d] > 65535 || dilation[d] < 1 || dilation[d] > 255)
      return YTK_BAD_ATTRIBUTE;
    const int64_t span = image[2 + d] + 2 * padding[d] - dilation[d] * (weight[2 + d] - 1) - 1;
    if (weight[2 + d] < 1 || weight[2 + d] > 255 || span < 0 || span / stride[d] + 1 != out[0].dims[2 + d])
      return YTK_BAD_SHAPE;
    shape->kernel[d] = int32_t(weight[2 + d]);
    shape->stride[d] = int32_t(stride[d]);
    shape->padding[d] = int32_t(padding[d]);
    shape->dilation[d] = int32_t(dilation[d]);
  }
  if (groups < 1 || offset_groups < 1) return YTK_BAD_ATTRIBUTE;
  shape->batch = image[0], shape->channels_in = image[1], shape->height = image[2], shape->width = image[3];
  shape->channels_out = weight[0], shape->out_height = out[0].dims[2], shape->out_width = out[0].dims[3];
  shape->groups = groups, shape->offset_groups = offset_groups, shape->use_mask = use_mask != 0;
  const int64_t volume = weight[2] * weight[3];
  if (image[1] != weight[1] * groups || weight[0] % groups != 0 || image[1] % offset_groups != 0 ||
      in[3].dims[0] != weight[0] || offset[0] != image[0] || offset[1] != 2 * offset_groups * volume ||
      offset[2] != out[0].dims[2] || offset[3] != out[0].dims[3])
    return YTK_BAD_SHAPE;
  const int64_t* mask = in[4].dims;
  if (use_mask != 0 && (mask[0] != image[0] || mask[1] != offset_groups * volume || mask[2] != offset[2] ||
                        mask[3] != offset[3]))
    return YTK_BAD_SHAPE;
  return YTK_OK;
}

#endif
}  // namespace ytk_catalogue
