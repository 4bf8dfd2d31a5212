// What the plugin skeletons of TensorRT 8.6 and of 10 and later share: attributes, tensors, variants and messages.
// Everything a plugin is comes from its table (ytk_plugin()); only its output shapes are rendered, into the skeleton.
#ifndef YTK_TRT_COMMON_H
#define YTK_TRT_COMMON_H

#include <NvInferRuntime.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ytk_cuda.h"

namespace ytk_trt {
namespace {

namespace trt = nvinfer1;

// ---- messages --------------------------------------------------------------------------------------------------------

trt::ILoggerFinder* logger_finder = nullptr;

// To TensorRT's own log, where there is one: a status number alone says little. The table has the plugin's name.
void complain(const char* where, const char* what, int number) {
  trt::ILogger* logger = logger_finder == nullptr ? nullptr : logger_finder->findLogger();
  if (logger == nullptr) return;
  const ytk_plugin_table& table = *ytk_plugin();
  char text[512];
  std::snprintf(text, sizeof text, "plugin %s::%s version %s: %s: %s %d", table.name_space, table.name, table.version, where,
                what, number);
  logger->log(trt::ILogger::Severity::kERROR, text);
}

// ---- numbers of TensorRT and of ytk_kernel.h ---------------------------------------------------------------------------
// By number, since the enumerations grow: 8.6 has no BF16 and no INT64.

constexpr int32_t kDtype[] = {YTK_FLOAT32, YTK_FLOAT16, YTK_INT8, YTK_INT32, YTK_BOOL, YTK_UINT8, YTK_DTYPE_NONE, YTK_BFLOAT16, YTK_INT64};
constexpr int32_t kFormat[] = {YTK_LINEAR, -1, YTK_HWC8, YTK_CHW4, YTK_CHW16, YTK_CHW32, -1, -1, YTK_HWC, -1, -1, YTK_HWC16};

int32_t dtype_of(trt::DataType type) {
  const auto number = static_cast<size_t>(type);
  return number < sizeof kDtype / sizeof *kDtype ? kDtype[number] : static_cast<int32_t>(YTK_DTYPE_NONE);
}

int32_t format_of(trt::TensorFormat format) {
  const auto number = static_cast<size_t>(format);
  return number < sizeof kFormat / sizeof *kFormat ? kFormat[number] : -1;
}

// The engine's type of a tensor; the renderer has refused bundles without a variant that this engine can take.
trt::DataType type_of(int32_t dtype) {
  for (size_t k = 0; k < sizeof kDtype / sizeof *kDtype; ++k)
    if (kDtype[k] == dtype) return static_cast<trt::DataType>(k);
  return trt::DataType::kFLOAT;
}

// ---- tensors and variants ----------------------------------------------------------------------------------------------

ytk_tensor tensor_of(const trt::PluginTensorDesc& desc, const trt::Dims& dims, void* data) {
  ytk_tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype_of(desc.type);
  tensor.format = format_of(desc.format);
  tensor.rank = dims.nbDims;
  for (int d = 0; d < dims.nbDims && d < YTK_MAX_RANK; ++d) tensor.dims[d] = dims.d[d];
  tensor.scale = desc.type == trt::DataType::kINT8 ? desc.scale : 1.0f;
  return tensor;
}

bool agrees(const ytk_variant& variant, int inputs, int position, trt::DataType type, trt::TensorFormat format) {
  const bool in = position < inputs;
  const int index = in ? position : position - inputs;
  return (in ? variant.in_dtypes : variant.out_dtypes)[index] == dtype_of(type) &&
         (in ? variant.in_formats : variant.out_formats)[index] == format_of(format);
}

// The first variant in which the tensors 0..count-1 (inputs, then outputs) have these types and formats; -1: none.
template <class DescOf>
int find_variant(const ytk_plugin_table& table, int count, DescOf desc_of) {
  for (int v = 0; v < table.variant_count; ++v) {
    bool all = true;
    for (int t = 0; t < count && all; ++t) {
      const trt::PluginTensorDesc& desc = desc_of(t);
      all = agrees(table.variants[v], table.nin, t, desc.type, desc.format);
    }
    if (all) return v;
  }
  return -1;
}

// What the outputs are when the network says only what the inputs are: the first variant of these input types, else the first.
trt::DataType output_type(const ytk_plugin_table& table, int output, const trt::DataType* inputs, int count) {
  for (int v = 0; v < table.variant_count; ++v) {
    bool all = count == table.nin;
    for (int i = 0; i < count && all; ++i) all = table.variants[v].in_dtypes[i] == dtype_of(inputs[i]);
    if (all) return type_of(table.variants[v].out_dtypes[output]);
  }
  return type_of(table.variants[0].out_dtypes[output]);
}

// ---- attributes --------------------------------------------------------------------------------------------------------

struct Value {
  std::string name;
  int32_t type = 0;
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::string text;

  int32_t count() const {
    return static_cast<int32_t>(type == YTK_ATTR_INTS ? ints.size() : type == YTK_ATTR_FLOATS ? floats.size() : text.size());
  }
};

template <class Number, class Out>
void append(const trt::PluginField& field, std::vector<Out>& out) {
  for (int32_t k = 0; k < field.length; ++k) {
    Number number;
    std::memcpy(&number, static_cast<const char*>(field.data) + sizeof number * static_cast<size_t>(k), sizeof number);
    out.push_back(static_cast<Out>(number));
  }
}

constexpr int32_t kFieldInt64 = 10; // trt::PluginFieldType::kINT64, which 8.6 lacks

// A field's value as the attribute that the contract declares. Parsers write 32-bit numbers, engines give back what was serialised.
bool convert(const trt::PluginField& field, const ytk_attr_decl& decl, Value& value) {
  value.name = decl.name;
  value.type = decl.type;
  if (field.length < 0 || (field.data == nullptr && field.length > 0)) return false;
  const bool ints = decl.type == YTK_ATTR_INTS;
  switch (static_cast<int32_t>(field.type)) {
    case static_cast<int32_t>(trt::PluginFieldType::kINT8): append<int8_t>(field, value.ints); return ints;
    case static_cast<int32_t>(trt::PluginFieldType::kINT16): append<int16_t>(field, value.ints); return ints;
    case static_cast<int32_t>(trt::PluginFieldType::kINT32): append<int32_t>(field, value.ints); return ints;
    case kFieldInt64: append<int64_t>(field, value.ints); return ints;
    case static_cast<int32_t>(trt::PluginFieldType::kFLOAT32): append<float>(field, value.floats); break;
    case static_cast<int32_t>(trt::PluginFieldType::kFLOAT64): append<double>(field, value.floats); break;
    case static_cast<int32_t>(trt::PluginFieldType::kCHAR):
      value.text.assign(static_cast<const char*>(field.data), static_cast<size_t>(field.length));
      // Some parsers count the final zero.
      while (!value.text.empty() && value.text.back() == 0) value.text.pop_back();
      return decl.type == YTK_ATTR_STRING;
    default: return false;
  }
  return decl.type == YTK_ATTR_FLOATS;
}

// The attributes of one node, as a launcher gets them. enqueue allocates nothing: the view is made when they change.
class Attributes {
 public:
  Attributes() = default;
  Attributes(const Attributes& other) : values_(other.values_) { look(); }
  Attributes& operator=(const Attributes& other) {
    values_ = other.values_;
    look();
    return *this;
  }

  // From a parser or an engine: fields of other names are not the plugin's. False: one is missing or of another type.
  bool take(const trt::PluginFieldCollection* fields) {
    const ytk_plugin_table& table = *ytk_plugin();
    values_.clear();
    for (int a = 0; a < table.attr_count; ++a) {
      const ytk_attr_decl& decl = table.attrs[a];
      const trt::PluginField* field = find(fields, decl.name);
      if (field == nullptr) {
        if (decl.required == 0) continue;
        complain(decl.name, "the node lacks this attribute; attributes it has:", fields == nullptr ? 0 : fields->nbFields);
        return false;
      }
      Value value;
      if (!convert(*field, decl, value)) {
        complain(decl.name, "the attribute has another type than the plugin wants: field type", static_cast<int>(field->type));
        return false;
      }
      values_.push_back(value);
    }
    look();
    return true;
  }

  const std::vector<Value>& values() const { return values_; }
  const ytk_attr* data() const { return view_.empty() ? nullptr : view_.data(); }
  int32_t size() const { return static_cast<int32_t>(view_.size()); }

  // For IPluginV2: magic, version, then name, type and value of each. A later version may read this one; no other is read.
  std::string encode() const {
    std::string out;
    put(out, kMagic);
    put(out, kVersion);
    put(out, static_cast<uint32_t>(values_.size()));
    for (const Value& value : values_) {
      put(out, static_cast<uint32_t>(value.name.size()));
      out += value.name;
      put(out, value.type);
      put(out, value.count());
      for (const int64_t number : value.ints) put(out, number);
      for (const double number : value.floats) put(out, number);
      out += value.text;
    }
    return out;
  }

  bool decode(const void* data, size_t length) {
    Reader in{static_cast<const char*>(data), length};
    if (in.get<uint32_t>() != kMagic || in.get<uint32_t>() != kVersion) return false;
    values_.clear();
    for (uint32_t left = in.get<uint32_t>(); left > 0 && in.good; --left) {
      Value value;
      value.name = in.text(in.get<uint32_t>());
      value.type = in.get<int32_t>();
      const auto count = static_cast<uint32_t>(in.get<int32_t>());
      if (value.type == YTK_ATTR_STRING) value.text = in.text(count);
      for (uint32_t k = 0; k < count && in.good && value.type == YTK_ATTR_INTS; ++k) value.ints.push_back(in.get<int64_t>());
      for (uint32_t k = 0; k < count && in.good && value.type == YTK_ATTR_FLOATS; ++k) value.floats.push_back(in.get<double>());
      values_.push_back(value);
    }
    look();
    return in.good && in.length == 0;
  }

 private:
  static constexpr uint32_t kMagic = 0x504B5459; // "YTKP"
  static constexpr uint32_t kVersion = 1;

  struct Reader {
    const char* at;
    size_t length;
    bool good = true;

    template <class Number>
    Number get() {
      Number number{};
      if (length < sizeof number) good = false;
      if (!good) return Number{};
      std::memcpy(&number, at, sizeof number);
      at += sizeof number;
      length -= sizeof number;
      return number;
    }
    std::string text(uint32_t count) {
      if (length < count) good = false;
      if (!good) return {};
      std::string out(at, count);
      at += count;
      length -= count;
      return out;
    }
  };

  template <class Number>
  static void put(std::string& out, Number number) {
    char bytes[sizeof number];
    std::memcpy(bytes, &number, sizeof number);
    out.append(bytes, sizeof number);
  }

  static const trt::PluginField* find(const trt::PluginFieldCollection* fields, const char* name) {
    for (int32_t k = 0; fields != nullptr && k < fields->nbFields; ++k)
      if (std::strcmp(fields->fields[k].name, name) == 0) return &fields->fields[k];
    return nullptr;
  }

  void look() {
    view_.clear();
    for (const Value& v : values_)
      view_.push_back({v.name.c_str(), v.type, v.count(), v.ints.data(), v.floats.data(), v.text.c_str()});
  }

  std::vector<Value> values_;
  std::vector<ytk_attr> view_;
};

ytk_context context_of(const Attributes& attributes, int variant, void* stream) {
  ytk_context ctx{};
  ctx.size = sizeof ctx;
  ctx.abi_version = YTK_ABI_VERSION;
  ctx.attrs = attributes.data();
  ctx.attr_count = attributes.size();
  ctx.variant = variant;
  ctx.stream = stream;
  ctx.threads = 1;
  return ctx;
}

// What a creator tells a parser: the names and types of the attributes. Parsers write ints and floats in 32 bits.
class FieldNames {
 public:
  FieldNames() {
    const ytk_plugin_table& table = *ytk_plugin();
    for (int a = 0; a < table.attr_count; ++a) {
      const int32_t type = table.attrs[a].type;
      fields_.push_back(trt::PluginField{table.attrs[a].name, nullptr,
                                         type == YTK_ATTR_INTS     ? trt::PluginFieldType::kINT32
                                         : type == YTK_ATTR_FLOATS ? trt::PluginFieldType::kFLOAT32
                                                                   : trt::PluginFieldType::kCHAR,
                                         1});
    }
    collection_.nbFields = static_cast<int32_t>(fields_.size());
    collection_.fields = fields_.data();
  }
  const trt::PluginFieldCollection* get() const { return &collection_; }

 private:
  std::vector<trt::PluginField> fields_;
  trt::PluginFieldCollection collection_{};
};

// ---- calls -------------------------------------------------------------------------------------------------------------

template <int kInputs, int kOutputs>
struct Tensors {
  ytk_tensor in[kInputs + 1];
  ytk_tensor out[kOutputs + 1];
};

// Bytes of workspace for these inputs; negative: a status that says why they are not acceptable.
template <int kInputs, int kOutputs>
int64_t workspace_bytes(ytk_context& ctx, Tensors<kInputs, kOutputs>& tensors) {
  const ytk_plugin_table& table = *ytk_plugin();
  if (table.workspace == nullptr) return 0;
  ytk_tensor out[kOutputs + 1] = {};
  if (const int status = table.shape(&ctx, tensors.in, kInputs, out, kOutputs)) return -static_cast<int64_t>(status);
  return table.workspace(&ctx, tensors.in, kInputs, out, kOutputs);
}

// One inference: 0, or a non-zero status that is in the log with the plugin's name.
template <int kInputs, int kOutputs>
int32_t run(const Attributes& attributes, const trt::PluginTensorDesc* in, const trt::PluginTensorDesc* out,
            void const* const* inputs, void* const* outputs, void* workspace, void* stream) {
  const ytk_plugin_table& table = *ytk_plugin();
  const int variant = find_variant(table, kInputs + kOutputs, [&](int t) -> const trt::PluginTensorDesc& {
    return t < kInputs ? in[t] : out[t - kInputs];
  });
  if (variant < 0) {
    complain("enqueue", "no variant has these types and formats; variants:", table.variant_count);
    return YTK_BAD_VARIANT;
  }
  Tensors<kInputs, kOutputs> tensors{};
  for (int i = 0; i < kInputs; ++i) tensors.in[i] = tensor_of(in[i], in[i].dims, const_cast<void*>(inputs[i]));
  for (int o = 0; o < kOutputs; ++o) tensors.out[o] = tensor_of(out[o], out[o].dims, outputs[o]);
  ytk_context ctx = context_of(attributes, variant, stream);
  const int64_t bytes = workspace_bytes(ctx, tensors);
  ctx.workspace = workspace;
  ctx.workspace_bytes = bytes < 0 ? 0 : static_cast<uint64_t>(bytes);
  const int status = bytes < 0 ? static_cast<int>(-bytes) : table.launch(&ctx, tensors.in, kInputs, tensors.out, kOutputs);
  if (status != 0) complain("enqueue", "failed with status", status);
  return status;
}

// Workspace for the largest shapes of a profile; the engine keeps this much for every smaller one.
template <int kInputs, int kOutputs>
size_t largest_workspace(const Attributes& attributes, const trt::PluginTensorDesc* in, const trt::Dims* dims, int variant) {
  if (variant < 0) return 0;
  Tensors<kInputs, kOutputs> tensors{};
  for (int i = 0; i < kInputs; ++i) tensors.in[i] = tensor_of(in[i], dims[i], nullptr);
  ytk_context ctx = context_of(attributes, variant, nullptr);
  const int64_t bytes = workspace_bytes(ctx, tensors);
  if (bytes < 0) complain("workspace", "the largest shapes are not acceptable: status", static_cast<int>(-bytes));
  return bytes < 0 ? 0 : static_cast<size_t>(bytes);
}

// Whether the plugin accepts inputs of these shapes (-1: not known yet) and the node's attributes; 0, or a status.
template <int kInputs, int kOutputs>
int32_t check_inputs(const Attributes& attributes, const trt::PluginTensorDesc* in, int variant) {
  if (variant < 0) return YTK_BAD_VARIANT;
  Tensors<kInputs, kOutputs> tensors{};
  for (int i = 0; i < kInputs; ++i) tensors.in[i] = tensor_of(in[i], in[i].dims, nullptr);
  const ytk_context ctx = context_of(attributes, variant, nullptr);
  const int status = ytk_plugin()->shape(&ctx, tensors.in, kInputs, tensors.out, kOutputs);
  if (status != 0) complain("configure", "these inputs or attributes are not acceptable: status", status);
  return status;
}

// Output extents as expressions; an expression of nullptr makes every expression over it nullptr.
class Expressions {
 public:
  explicit Expressions(trt::IExprBuilder& builder) : builder_(builder) {}

  const trt::IDimensionExpr* constant(int64_t value) {
    // 8.6 takes 32 bits.
    return builder_.constant(static_cast<decltype(trt::Dims::d[0] + 0)>(value));
  }
  const trt::IDimensionExpr* apply(trt::DimensionOperation operation, const trt::IDimensionExpr* left,
                                   const trt::IDimensionExpr* right) {
    return left == nullptr || right == nullptr ? nullptr : builder_.operation(operation, *left, *right);
  }

 private:
  trt::IExprBuilder& builder_;
};

} // namespace
} // namespace ytk_trt

#endif
