#include "ov_types.h"

#include <algorithm>
#include <openvino/core/type/bfloat16.hpp>
#include <openvino/core/type/float16.hpp>
#include <string>

#include "kernel_library.h"

namespace ytk::ov_types {
namespace {

struct DTypePair {
  ov::element::Type_t engine;
  int32_t kernel;
};

constexpr DTypePair kDTypes[] = {
    {ov::element::Type_t::f32, YTK_FLOAT32},  {ov::element::Type_t::f16, YTK_FLOAT16},
    {ov::element::Type_t::f64, YTK_FLOAT64},  {ov::element::Type_t::bf16, YTK_BFLOAT16},
    {ov::element::Type_t::i8, YTK_INT8},      {ov::element::Type_t::u8, YTK_UINT8},
    {ov::element::Type_t::i32, YTK_INT32},    {ov::element::Type_t::i64, YTK_INT64},
    {ov::element::Type_t::boolean, YTK_BOOL},
};

template <typename From, typename To>
void convert_elements(const ytk_tensor& from, const ytk_tensor& to) {
  const From* source = static_cast<const From*>(from.data);
  std::transform(source, source + element_count(from), static_cast<To*>(to.data),
                 [](From value) { return static_cast<To>(value); });
}

struct Conversion {
  int32_t from;
  int32_t to;
  void (*run)(const ytk_tensor& from, const ytk_tensor& to);
};

constexpr Conversion kConversions[] = {
    {YTK_INT32, YTK_INT64, convert_elements<int32_t, int64_t>},
    {YTK_INT64, YTK_INT32, convert_elements<int64_t, int32_t>},
    {YTK_UINT8, YTK_BOOL, convert_elements<uint8_t, bool>},
    {YTK_BOOL, YTK_UINT8, convert_elements<bool, uint8_t>},
    {YTK_FLOAT32, YTK_FLOAT64, convert_elements<float, double>},
    {YTK_FLOAT64, YTK_FLOAT32, convert_elements<double, float>},
    {YTK_FLOAT32, YTK_FLOAT16, convert_elements<float, ov::float16>},
    {YTK_FLOAT16, YTK_FLOAT32, convert_elements<ov::float16, float>},
    {YTK_FLOAT32, YTK_BFLOAT16, convert_elements<float, ov::bfloat16>},
    {YTK_BFLOAT16, YTK_FLOAT32, convert_elements<ov::bfloat16, float>},
};

// A tensor of this rank whose dims the caller fills in.
ytk_tensor blank(const ov::element::Type& type, size_t rank) {
  if (rank > YTK_MAX_RANK) {
    throw HostError(Blame::contract, "rank " + std::to_string(rank) + " is above " + std::to_string(YTK_MAX_RANK) +
                                         ", the most a kernel takes");
  }
  ytk_tensor tensor{};
  tensor.dtype = kernel_dtype(type);
  tensor.rank = static_cast<int32_t>(rank);
  tensor.format = YTK_LINEAR;
  tensor.scale = 1.0F;
  return tensor;
}

}  // namespace

int32_t kernel_dtype(const ov::element::Type& type) {
  for (const DTypePair& pair : kDTypes) {
    if (type == pair.engine) return pair.kernel;
  }
  throw HostError(Blame::contract, "no kernel takes the element type " + type.get_type_name());
}

ov::element::Type engine_dtype(int32_t dtype) {
  for (const DTypePair& pair : kDTypes) {
    if (dtype == pair.kernel) return pair.engine;
  }
  throw HostError(Blame::contract, "the engine has no element type for " + dtype_name(dtype));
}

ytk_tensor describe(const ov::element::Type& type, const ov::PartialShape& shape) {
  ytk_tensor tensor = blank(type, shape.size());
  std::transform(shape.begin(), shape.end(), tensor.dims, [](const ov::Dimension& dim) {
    return dim.is_static() ? static_cast<int64_t>(dim.get_length()) : int64_t{-1};
  });
  return tensor;
}

ytk_tensor describe(const ov::Tensor& value) {
  const ov::Shape shape = value.get_shape();
  ytk_tensor tensor = blank(value.get_element_type(), shape.size());
  std::copy(shape.begin(), shape.end(), tensor.dims);
  // Inputs too lose their const: the contract has one tensor type, and kernels write nothing but outputs and workspace.
  tensor.data = const_cast<void*>(static_cast<const void*>(value.data()));
  return tensor;
}

int64_t element_count(const ytk_tensor& tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) count *= tensor.dims[axis];
  return count;
}

int64_t byte_count(const ytk_tensor& tensor) {
  return element_count(tensor) * static_cast<int64_t>(engine_dtype(tensor.dtype).size());
}

int32_t storage_dtype(int32_t dtype) {
  switch (dtype) {
    case YTK_FLOAT64:
    case YTK_FLOAT16:
    case YTK_BFLOAT16:
      return YTK_FLOAT32;
    case YTK_INT64:
      return YTK_INT32;
    case YTK_BOOL:
      return YTK_UINT8;
    default:
      return dtype;
  }
}

void convert(const ytk_tensor& from, const ytk_tensor& to) {
  const auto* const conversion =
      std::find_if(std::begin(kConversions), std::end(kConversions),
                   [&](const Conversion& c) { return c.from == from.dtype && c.to == to.dtype; });
  if (conversion == std::end(kConversions)) {
    throw HostError(Blame::contract, "no conversion from " + dtype_name(from.dtype) + " to " + dtype_name(to.dtype));
  }
  conversion->run(from, to);
}

}  // namespace ytk::ov_types
