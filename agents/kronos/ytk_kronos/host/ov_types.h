// Element types and tensors between OpenVINO and the kernel contract.
#pragma once

#include <cstdint>
#include <openvino/core/partial_shape.hpp>
#include <openvino/core/type/element_type.hpp>
#include <openvino/runtime/tensor.hpp>

#include "ytk_kernel.h"

namespace ytk::ov_types {

int32_t kernel_dtype(const ov::element::Type& type);
ov::element::Type engine_dtype(int32_t dtype);

// Without data; dims are -1 where the shape leaves them open. The rank must be known.
ytk_tensor describe(const ov::element::Type& type, const ov::PartialShape& shape);
// With the value's own memory.
ytk_tensor describe(const ov::Tensor& value);

int64_t element_count(const ytk_tensor& tensor);
int64_t byte_count(const ytk_tensor& tensor);

// The type in which OpenVINO's CPU device keeps values of a type: int64 as int32, bool as uint8, and float64, float16
// and bfloat16 as float32. Nodes of ours have ports of these types only, or the device would rewrite them under our
// feet.
int32_t storage_dtype(int32_t dtype);
// From a type to its storage type or back. Both tensors have data and as many elements.
void convert(const ytk_tensor& from, const ytk_tensor& to);

}  // namespace ytk::ov_types
