#include "kernel_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <sstream>

namespace ytk {
namespace {

// A table of ABI 1 ends with meta_digest, which this host does not read.
constexpr size_t kSmallestTable = offsetof(ytk_plugin_table, meta_digest);

std::string dtypes_text(const std::vector<int32_t>& dtypes) {
  std::string text;
  for (const int32_t dtype : dtypes) {
    text += (text.empty() ? "" : ", ") + dtype_name(dtype);
  }
  return "(" + text + ")";
}

std::string dims_text(const ytk_tensor& tensor) {
  std::ostringstream text;
  text << dtype_name(tensor.dtype) << "[";
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    text << (axis == 0 ? "" : ",") << tensor.dims[axis];
  }
  text << "]";
  return text.str();
}

std::string shapes_text(const std::vector<ytk_tensor>& tensors) {
  std::string text;
  for (const ytk_tensor& tensor : tensors) {
    text += (text.empty() ? "" : ", ") + dims_text(tensor);
  }
  return text;
}

std::string variants_text(const ytk_plugin_table& table) {
  std::string text;
  for (int32_t v = 0; v < table.variant_count; ++v) {
    const ytk_variant& variant = table.variants[v];
    text += (text.empty() ? "" : "; ") + std::string(variant.id) + " (";
    for (int32_t i = 0; i < table.nin; ++i) {
      text += (i == 0 ? "" : ", ") + dtype_name(variant.in_dtypes[i]);
      if (variant.in_formats[i] != YTK_LINEAR) text += " in a vectorised layout";
    }
    text += ")";
  }
  return text;
}

bool all_linear(const ytk_plugin_table& table, const ytk_variant& variant) {
  const auto linear = [](int32_t format) { return format == YTK_LINEAR; };
  return std::all_of(variant.in_formats, variant.in_formats + table.nin, linear) &&
         std::all_of(variant.out_formats, variant.out_formats + table.nout, linear);
}

int32_t attribute_type(const AttributeValue& value) {
  if (std::holds_alternative<std::vector<int64_t>>(value)) return YTK_ATTR_INTS;
  if (std::holds_alternative<std::vector<double>>(value)) return YTK_ATTR_FLOATS;
  return YTK_ATTR_STRING;
}

const char* attribute_type_name(int32_t type) {
  switch (type) {
    case YTK_ATTR_INTS:
      return "ints";
    case YTK_ATTR_FLOATS:
      return "floats";
    case YTK_ATTR_STRING:
      return "string";
    default:
      return "unknown";
  }
}

const char* blame_name(Blame blame) {
  switch (blame) {
    case Blame::library:
      return "library";
    case Blame::contract:
      return "contract";
    default:
      return "kernel";
  }
}

}  // namespace

HostError::HostError(Blame blame, const std::string& message)
    : std::runtime_error("[ytk-host:" + std::string(blame_name(blame)) + "] " + message) {}

std::string dtype_name(int32_t dtype) {
  switch (dtype) {
    case YTK_FLOAT32:
      return "float32";
    case YTK_UINT8:
      return "uint8";
    case YTK_INT8:
      return "int8";
    case YTK_INT32:
      return "int32";
    case YTK_INT64:
      return "int64";
    case YTK_BOOL:
      return "bool";
    case YTK_FLOAT16:
      return "float16";
    case YTK_FLOAT64:
      return "float64";
    case YTK_BFLOAT16:
      return "bfloat16";
    default:
      return "dtype " + std::to_string(dtype);
  }
}

std::string status_name(int status) {
  static const char* const names[] = {
      "ok",          "bad arity",           "bad dtype",    "bad shape",   "bad attribute",
      "bad variant", "workspace too small", "device error", "unsupported", "bad alignment",
      "overflow: more results than the declared maximum"};
  const bool known = status >= 0 && status < static_cast<int>(std::size(names));
  return std::to_string(status) + " (" + (known ? names[status] : "the kernel's own code") + ")";
}

AttributeSet::AttributeSet(std::map<std::string, AttributeValue> values) : values_(std::move(values)) {
  views_.reserve(values_.size());
  for (const auto& [name, value] : values_) {
    ytk_attr view{};
    view.name = name.c_str();
    view.type = attribute_type(value);
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
      view.ints = ints->data();
      view.count = static_cast<int32_t>(ints->size());
    } else if (const auto* floats = std::get_if<std::vector<double>>(&value)) {
      view.floats = floats->data();
      view.count = static_cast<int32_t>(floats->size());
    } else {
      const std::string& text = std::get<std::string>(value);
      view.string = text.c_str();
      view.count = static_cast<int32_t>(text.size());
    }
    views_.push_back(view);
  }
}

KernelLibrary::KernelLibrary(const std::string& path, int32_t threads) : full_name_(path), threads_(threads) {
  // RTLD_LOCAL: two libraries may define the same internal symbols. RTLD_NOW: an undefined symbol fails here, by name.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw HostError(Blame::library, "cannot load " + path + ": " + dlerror());
  }
  using PluginFn = const ytk_plugin_table* (*)();
  const auto plugin = reinterpret_cast<PluginFn>(dlsym(handle, "ytk_plugin"));
  if (plugin == nullptr) {
    throw HostError(Blame::library, path + " is not a kernel library: it exports no ytk_plugin()");
  }
  table_ = plugin();
  check_table(path);
  full_name_ = std::string(table_->name_space) + "::" + table_->name;
}

void KernelLibrary::check_table(const std::string& path) const {
  if (table_ == nullptr) {
    throw HostError(Blame::library, path + ": ytk_plugin() returned no table");
  }
  if (table_->abi_version != YTK_ABI_VERSION || table_->size < kSmallestTable) {
    throw HostError(Blame::library, path + ": kernel ABI " + std::to_string(table_->abi_version) + " with a table of " +
                                        std::to_string(table_->size) + " bytes; this host speaks ABI " +
                                        std::to_string(YTK_ABI_VERSION));
  }
  if (table_->name == nullptr || table_->name_space == nullptr || table_->version == nullptr) {
    throw HostError(Blame::library, path + ": the plugin table has no name, namespace or version");
  }
  const bool counts_ok = table_->nin >= 0 && table_->nout >= 1 && table_->variant_count >= 1 && table_->attr_count >= 0;
  if (!counts_ok || table_->variants == nullptr || table_->launch == nullptr || table_->shape == nullptr ||
      (table_->attr_count > 0 && table_->attrs == nullptr)) {
    throw HostError(
        Blame::library,
        path + ": the plugin table is incomplete (outputs, variants, launch and shape function are needed)");
  }
}

void KernelLibrary::fail(Blame blame, const std::string& what) const {
  throw HostError(blame, "plugin " + full_name_ + ": " + what);
}

void KernelLibrary::check_arity(size_t inputs) const {
  if (inputs != input_count()) {
    fail(Blame::contract,
         "the node has " + std::to_string(inputs) + " inputs, the plugin takes " + std::to_string(table_->nin));
  }
}

int32_t KernelLibrary::find_variant(const std::vector<int32_t>& dtypes) const {
  check_arity(dtypes.size());
  for (int32_t v = 0; v < table_->variant_count; ++v) {
    const ytk_variant& variant = table_->variants[v];
    if (all_linear(*table_, variant) && std::equal(dtypes.begin(), dtypes.end(), variant.in_dtypes)) return v;
  }
  return -1;
}

int32_t KernelLibrary::variant_named(const std::string& id) const {
  for (int32_t v = 0; v < table_->variant_count; ++v) {
    if (id == table_->variants[v].id && all_linear(*table_, table_->variants[v])) return v;
  }
  fail(Blame::contract, "the engine file wants its variant '" + id + "'; it has " + variants_text(*table_));
}

void KernelLibrary::refuse_dtypes(const std::vector<int32_t>& dtypes) const {
  fail(Blame::contract,
       "no variant takes " + dtypes_text(dtypes) + " in linear layout; it has " + variants_text(*table_));
}

void KernelLibrary::check_attributes(const std::map<std::string, AttributeValue>& values) const {
  for (int32_t a = 0; a < table_->attr_count; ++a) {
    const ytk_attr_decl& declared = table_->attrs[a];
    const auto found = values.find(declared.name);
    if (found == values.end()) {
      if (declared.required != 0)
        fail(Blame::contract, std::string("the node lacks the required attribute '") + declared.name + "'");
      continue;
    }
    const int32_t type = attribute_type(found->second);
    if (type != declared.type) {
      fail(Blame::contract, std::string("attribute '") + declared.name + "' is " + attribute_type_name(type) +
                                " on the node, the plugin reads " + attribute_type_name(declared.type));
    }
  }
}

ytk_context KernelLibrary::context(const AttributeSet& attributes, int32_t variant) const {
  ytk_context context{};
  context.size = sizeof(ytk_context);
  context.abi_version = YTK_ABI_VERSION;
  context.attrs = attributes.views().data();
  context.attr_count = static_cast<int32_t>(attributes.views().size());
  context.variant = variant;
  context.threads = threads_;
  return context;
}

std::vector<ytk_tensor> KernelLibrary::infer(const AttributeSet& attributes, int32_t variant,
                                             const std::vector<ytk_tensor>& inputs) const {
  const ytk_context call = context(attributes, variant);
  std::vector<ytk_tensor> outputs(output_count(), ytk_tensor{});
  for (ytk_tensor& output : outputs) output.scale = 1.0F;
  const int status = table_->shape(&call, inputs.data(), table_->nin, outputs.data(), table_->nout);
  if (status != YTK_OK) {
    fail(Blame::kernel, "its shape function refused " + shapes_text(inputs) + " with status " + status_name(status));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ytk_tensor& output = outputs[i];
    const bool dims_ok = output.rank >= 0 && output.rank <= YTK_MAX_RANK &&
                         std::all_of(output.dims, output.dims + output.rank, [](int64_t dim) { return dim >= -1; });
    if (!dims_ok) {
      fail(Blame::kernel,
           "its shape function gave output " + std::to_string(i) + " an impossible shape for " + shapes_text(inputs));
    }
    const int32_t promised = table_->variants[variant].out_dtypes[i];
    if (output.dtype != promised) {
      fail(Blame::kernel, "its shape function gave output " + std::to_string(i) + " " + dtype_name(output.dtype) +
                              ", its variant promises " + dtype_name(promised));
    }
  }
  return outputs;
}

void KernelLibrary::launch(const AttributeSet& attributes, int32_t variant, const std::vector<ytk_tensor>& inputs,
                           std::vector<ytk_tensor>& outputs) const {
  ytk_context call = context(attributes, variant);
  int64_t bytes = 0;
  if (table_->workspace != nullptr) {
    bytes = table_->workspace(&call, inputs.data(), table_->nin, outputs.data(), table_->nout);
    if (bytes < 0)
      fail(Blame::kernel, "its workspace function refused " + shapes_text(inputs) + " with " + std::to_string(bytes));
  }
  const WorkspacePool::Lease lease(WorkspacePool::shared(), static_cast<size_t>(bytes));
  call.workspace = lease.data();
  call.workspace_bytes = static_cast<uint64_t>(bytes);
  const int status = table_->launch(&call, inputs.data(), table_->nin, outputs.data(), table_->nout);
  if (status != YTK_OK) {
    fail(Blame::kernel, "launch returned status " + status_name(status) + " for " + shapes_text(inputs));
  }
}

void WorkspacePool::Lease::Free::operator()(void* memory) const { std::free(memory); }

WorkspacePool::Lease::Lease(WorkspacePool& pool, size_t bytes) : pool_(pool) {
  if (bytes > 0) buffer_ = pool_.take(bytes);
}

WorkspacePool::Lease::~Lease() {
  if (buffer_.memory) pool_.give_back(std::move(buffer_));
}

WorkspacePool& WorkspacePool::shared() {
  static WorkspacePool pool;
  return pool;
}

WorkspacePool::Lease::Buffer WorkspacePool::take(size_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Sorted by size, so the first that fits is the smallest that fits.
    const auto fit =
        std::find_if(idle_.begin(), idle_.end(), [bytes](const Lease::Buffer& b) { return b.bytes >= bytes; });
    if (fit != idle_.end()) {
      Lease::Buffer buffer = std::move(*fit);
      idle_.erase(fit);
      return buffer;
    }
    // None fits: the largest idle one goes, so that growing shapes do not pile up buffers.
    if (!idle_.empty()) idle_.pop_back();
  }
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Lease::Buffer buffer{{std::aligned_alloc(kAlignment, rounded), {}}, rounded};
  if (!buffer.memory) throw std::bad_alloc();
  return buffer;
}

void WorkspacePool::give_back(Lease::Buffer buffer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place =
      std::find_if(idle_.begin(), idle_.end(), [&](const Lease::Buffer& b) { return b.bytes >= buffer.bytes; });
  idle_.insert(place, std::move(buffer));
}

}  // namespace ytk
