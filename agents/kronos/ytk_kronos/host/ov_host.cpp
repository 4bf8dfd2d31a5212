// The host library for OpenVINO: one OpenVINO operation per kernel library, in the ONNX domain of its namespace.
//
// Use: call ytk_host_load() with the libraries, then Core::add_extension() with this library. Both are needed in every
// process that reads the ONNX or imports an exported blob.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/frontend/onnx/extension/conversion.hpp>
#include <openvino/op/convert.hpp>
#include <openvino/op/op.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernel_library.h"
#include "ov_types.h"

namespace {

using ytk::AttributeSet;
using ytk::AttributeValue;
using ytk::Blame;
using ytk::HostError;
using ytk::KernelLibrary;
using ytk::ov_types::describe;

// Attributes go into an exported blob as text, one string each: the engine's own writer rounds floats and cannot tell
// an empty list from an absent one. The first letter is the type; floats are hexadecimal, hence exact.
std::string encode(const AttributeValue& value) {
  std::ostringstream text;
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    text << "i";
    for (const int64_t item : *ints) text << " " << item;
  } else if (const auto* floats = std::get_if<std::vector<double>>(&value)) {
    text << "f" << std::hexfloat;
    for (const double item : *floats) text << " " << item;
  } else {
    text << "s" << std::get<std::string>(value);
  }
  return text.str();
}

AttributeValue decode(const std::string& text) {
  std::istringstream items(text.empty() ? text : text.substr(1));
  std::string item;
  switch (text.empty() ? '\0' : text.front()) {
    case 'i': {
      std::vector<int64_t> ints;
      while (items >> item) ints.push_back(std::stoll(item));
      return ints;
    }
    case 'f': {
      std::vector<double> floats;
      while (items >> item) floats.push_back(std::stod(item));  // reads what hexfloat wrote, inf and nan included
      return floats;
    }
    case 's':
      return text.substr(1);
    default:
      throw HostError(Blame::library, "the engine file holds an attribute this host did not write: '" + text + "'");
  }
}

// A kernel library as an OpenVINO operation type.
struct Plugin {
  Plugin(const std::string& path, int32_t threads)
      : library(path, threads),
        name(library.table().name),
        // Not the bare namespace: one called "opset1" would shadow the engine's own operations in an exported blob.
        opset(std::string("ytk.") + library.table().name_space),
        type_info(name.c_str(), opset.c_str(), &ov::op::Op::get_type_info_static()) {
    type_info.hash();
  }
  Plugin(const Plugin&) = delete;  // type_info points into the strings
  Plugin& operator=(const Plugin&) = delete;

  KernelLibrary library;
  std::string name;
  std::string opset;
  ov::DiscreteTypeInfo type_info;
};

using PluginPtr = std::shared_ptr<const Plugin>;
using AttributesPtr = std::shared_ptr<const AttributeSet>;

// Where a blob keeps the variant of a node; a kernel's attribute cannot be called so.
constexpr char kVariantKey[] = "ytk.variant";

// Gives the tensors of a call as the kernel expects them: in its own dtype where the engine stores another, and aligned
// where the engine passes memory of the application's. Both are then in scratch memory.
class Edge {
 public:
  // The tensor that the kernel sees: `engine` itself, or scratch memory of `dtype` and the same dims.
  ytk_tensor as(const ytk_tensor& engine, int32_t dtype) {
    const bool aligned = reinterpret_cast<uintptr_t>(engine.data) % ytk::kAlignment == 0;
    if (engine.dtype == dtype && aligned) return engine;
    ytk_tensor own = engine;
    own.dtype = dtype;
    const auto bytes = static_cast<size_t>(ytk::ov_types::byte_count(own));
    leases_.push_back(std::make_unique<ytk::WorkspacePool::Lease>(ytk::WorkspacePool::shared(), bytes));
    own.data = leases_.back()->data();
    return own;
  }

  // From one side of an edge to the other.
  static void copy(const ytk_tensor& from, const ytk_tensor& to) {
    if (from.data == to.data) return;
    if (from.dtype == to.dtype) {
      std::memcpy(to.data, from.data, static_cast<size_t>(ytk::ov_types::byte_count(from)));
    } else {
      ytk::ov_types::convert(from, to);
    }
  }

 private:
  std::vector<std::unique_ptr<ytk::WorkspacePool::Lease>> leases_;
};

// How often the kernel of one node was called. An engine may drop a node, or compute it by other means: what counts is
// whether the kernel ran. Clones of a node, which an engine makes at will, share one.
struct Calls {
  std::string plugin;
  std::string node;
  std::atomic<int64_t> count{0};
};

using CallsPtr = std::shared_ptr<Calls>;

// Every node whose kernel was called at least once in this process.
class CallRecord {
 public:
  static CallRecord& shared() {
    static CallRecord record;
    return record;
  }

  // Counts a call; the node's name is only known for certain once the engine is built.
  void count(const CallsPtr& calls, const std::string& node) {
    if (calls->count.fetch_add(1, std::memory_order_relaxed) != 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    calls->node = node;
    seen_.push_back(calls);
  }

  // One line per node: plugin, node and count, separated by a character that is in no name.
  std::string text() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string all;
    for (const CallsPtr& calls : seen_) {
      all += calls->plugin + '\x1f' + calls->node + '\x1f' + std::to_string(calls->count.load()) + '\x1e';
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<CallsPtr> seen_;
};

class PluginOp final : public ov::op::Op {
 public:
  PluginOp(PluginPtr plugin, const ov::OutputVector& inputs, AttributesPtr attributes, int32_t variant, CallsPtr calls)
      : ov::op::Op(inputs),
        plugin_(std::move(plugin)),
        attributes_(std::move(attributes)),
        variant_(variant),
        calls_(std::move(calls)) {}

  const ov::DiscreteTypeInfo& get_type_info() const override { return plugin_->type_info; }

  void validate_and_infer_types() override {
    set_output_size(plugin_->library.output_count());
    std::vector<ytk_tensor> inputs;
    for (size_t i = 0; i < get_input_size(); ++i) {
      const ov::PartialShape& shape = get_input_partial_shape(i);
      if (shape.rank().is_dynamic()) {
        set_outputs_unknown();
        return;
      }
      ytk_tensor input = describe(get_input_element_type(i), shape);
      check_storage(input, variant().in_dtypes[i], "input", i);
      input.dtype = variant().in_dtypes[i];
      inputs.push_back(input);
    }
    const std::vector<ytk_tensor> outputs = plugin_->library.infer(*attributes_, variant_, inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ytk_tensor& output = outputs[i];
      set_output_type(i, output_type(i),
                      ov::PartialShape(std::vector<ov::Dimension>(output.dims, output.dims + output.rank)));
    }
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    auto clone = std::make_shared<PluginOp>(plugin_, inputs, attributes_, variant_, calls_);
    clone->validate_and_infer_types();
    return clone;
  }

  // Writes variant and attributes into a blob; PluginExtension::create() reads them back.
  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    std::string id = variant().id;
    visitor.on_attribute(kVariantKey, id);
    for (const auto& [name, value] : attributes_->values()) {
      std::string text = encode(value);
      visitor.on_attribute(name, text);
    }
    return true;
  }

  // The kernel must run in the engine, where it is timed and verified, and never once at build time.
  bool can_constant_fold(const ov::OutputVector&) const override { return false; }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    Edge edge;
    std::vector<ytk_tensor> kernel_inputs;
    kernel_inputs.reserve(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ytk_tensor stored = describe(inputs[i]);
      const int32_t dtype = variant().in_dtypes[i];
      check_storage(stored, dtype, "input", i);
      kernel_inputs.push_back(edge.as(stored, dtype));
      Edge::copy(stored, kernel_inputs.back());
    }
    std::vector<ytk_tensor> kernel_outputs = plugin_->library.infer(*attributes_, variant_, kernel_inputs);
    std::vector<ytk_tensor> stored_outputs;
    stored_outputs.reserve(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      give_shape(outputs[i], kernel_outputs[i], i);
      stored_outputs.push_back(describe(outputs[i]));
      check_storage(stored_outputs[i], kernel_outputs[i].dtype, "output", i);
      kernel_outputs[i] = edge.as(stored_outputs[i], kernel_outputs[i].dtype);
    }
    plugin_->library.launch(*attributes_, variant_, kernel_inputs, kernel_outputs);
    CallRecord::shared().count(calls_, get_friendly_name());
    for (size_t i = 0; i < outputs.size(); ++i) Edge::copy(kernel_outputs[i], stored_outputs[i]);
    return true;
  }

 private:
  const ytk_variant& variant() const { return plugin_->library.table().variants[variant_]; }

  ov::element::Type output_type(size_t index) const {
    return ytk::ov_types::engine_dtype(ytk::ov_types::storage_dtype(variant().out_dtypes[index]));
  }

  void check_storage(const ytk_tensor& stored, int32_t dtype, const char* what, size_t index) const {
    if (stored.dtype != ytk::ov_types::storage_dtype(dtype)) {
      throw HostError(Blame::contract, "plugin " + plugin_->library.full_name() + ": the engine keeps " + what + " " +
                                           std::to_string(index) + " as " + ytk::dtype_name(stored.dtype) +
                                           ", the kernel's " + ytk::dtype_name(dtype) + " was expected to be kept as " +
                                           ytk::dtype_name(ytk::ov_types::storage_dtype(dtype)));
    }
  }

  void give_shape(ov::Tensor& output, const ytk_tensor& wanted, size_t index) const {
    if (std::any_of(wanted.dims, wanted.dims + wanted.rank, [](int64_t dim) { return dim < 0; })) {
      throw HostError(Blame::kernel, "plugin " + plugin_->library.full_name() + ": output " + std::to_string(index) +
                                         " has no known shape at run time");
    }
    const ov::Shape shape(wanted.dims, wanted.dims + wanted.rank);
    if (output.get_shape() != shape) output.set_shape(shape);
  }

  void set_outputs_unknown() {
    for (size_t i = 0; i < get_output_size(); ++i) {
      set_output_type(i, output_type(i), ov::PartialShape::dynamic());
    }
  }

  PluginPtr plugin_;
  AttributesPtr attributes_;
  int32_t variant_;
  CallsPtr calls_;
};

std::shared_ptr<PluginOp> make_op(const PluginPtr& plugin, const ov::OutputVector& inputs,
                                  std::map<std::string, AttributeValue> values, int32_t variant) {
  plugin->library.check_arity(inputs.size());
  plugin->library.check_attributes(values);
  auto calls = std::make_shared<Calls>();
  calls->plugin = plugin->library.full_name();
  auto op = std::make_shared<PluginOp>(plugin, inputs, std::make_shared<const AttributeSet>(std::move(values)), variant,
                                       std::move(calls));
  op->validate_and_infer_types();
  return op;
}

// Makes an operation when a blob is imported.
class PluginExtension final : public ov::BaseOpExtension {
 public:
  explicit PluginExtension(PluginPtr plugin) : plugin_(std::move(plugin)) {}

  const ov::DiscreteTypeInfo& get_type_info() const override { return plugin_->type_info; }

  ov::OutputVector create(const ov::OutputVector& inputs, ov::AttributeVisitor& visitor) const override {
    const ytk_plugin_table& table = plugin_->library.table();
    std::map<std::string, AttributeValue> values;
    for (int32_t a = 0; a < table.attr_count; ++a) {
      std::string text;
      visitor.on_attribute(table.attrs[a].name, text);
      if (!text.empty()) values.emplace(table.attrs[a].name, decode(text));  // left empty: the node has none
    }
    std::string id;
    visitor.on_attribute(kVariantKey, id);
    return make_op(plugin_, inputs, std::move(values), plugin_->library.variant_named(id))->outputs();
  }

  std::vector<ov::Extension::Ptr> get_attached_extensions() const override { return {}; }

 private:
  PluginPtr plugin_;
};

// An ONNX attribute as kernels see it: scalars become lists of one. OpenVINO gives floats as doubles.
AttributeValue from_onnx(const ov::Any& value, const std::string& where) {
  if (value.is<int64_t>()) return std::vector<int64_t>{value.as<int64_t>()};
  if (value.is<std::vector<int64_t>>()) return value.as<std::vector<int64_t>>();
  if (value.is<double>()) return std::vector<double>{value.as<double>()};
  if (value.is<std::vector<double>>()) return value.as<std::vector<double>>();
  if (value.is<std::string>()) return value.as<std::string>();
  throw HostError(Blame::contract, where + " is neither ints, floats nor a string");
}

// The declared attributes that the node has. plugin_namespace and plugin_version, which other engines need, are none.
std::map<std::string, AttributeValue> read_attributes(const Plugin& plugin, const ov::frontend::NodeContext& node) {
  const ytk_plugin_table& table = plugin.library.table();
  std::map<std::string, AttributeValue> values;
  for (int32_t a = 0; a < table.attr_count; ++a) {
    const std::string name = table.attrs[a].name;
    const ov::Any value = node.get_attribute_as_any(name);
    if (value.empty()) continue;
    values.emplace(name, from_onnx(value, "plugin " + plugin.library.full_name() + ": attribute '" + name + "'"));
  }
  return values;
}

ov::Output<ov::Node> as_type(const ov::Output<ov::Node>& value, const ov::element::Type& type) {
  return value.get_element_type() == type ? value : std::make_shared<ov::op::v0::Convert>(value, type)->output(0);
}

// The graph's type of an output that the kernel gives in a stored type: back to what the inputs were stored for, if
// they agree (a float16 node run by a float32 kernel gives float16 again).
int32_t declared_output(int32_t dtype, const std::vector<int32_t>& declared, const std::vector<int32_t>& stored) {
  int32_t answer = dtype;
  for (size_t i = 0; i < declared.size(); ++i) {
    if (stored[i] != dtype) continue;
    if (declared[i] == dtype || (answer != dtype && answer != declared[i])) return dtype;
    answer = declared[i];
  }
  return answer;
}

// Makes an operation when an ONNX file is read: between conversions, where the engine would store a tensor otherwise.
// A variant that works in the stored types is preferred: it saves those conversions.
ov::OutputVector convert(const PluginPtr& plugin, const ov::frontend::NodeContext& node) {
  const KernelLibrary& library = plugin->library;
  std::vector<int32_t> declared;
  std::vector<int32_t> stored;
  ov::OutputVector inputs;
  for (size_t i = 0; i < node.get_input_size(); ++i) {
    const ov::Output<ov::Node> input = node.get_input(static_cast<int>(i));
    declared.push_back(ytk::ov_types::kernel_dtype(input.get_element_type()));
    stored.push_back(ytk::ov_types::storage_dtype(declared.back()));
    inputs.push_back(as_type(input, ytk::ov_types::engine_dtype(stored.back())));
  }
  const int32_t exact = library.find_variant(declared);
  const int32_t direct = library.find_variant(stored);
  if (exact < 0 && direct < 0) library.refuse_dtypes(declared);
  const std::shared_ptr<PluginOp> op =
      make_op(plugin, inputs, read_attributes(*plugin, node), direct >= 0 ? direct : exact);
  op->set_friendly_name(node.get_name());
  ov::OutputVector outputs;
  for (size_t i = 0; i < library.output_count(); ++i) {
    const int32_t dtype = exact >= 0
                              ? library.table().variants[exact].out_dtypes[i]
                              : declared_output(library.table().variants[direct].out_dtypes[i], declared, stored);
    outputs.push_back(as_type(op->output(i), ytk::ov_types::engine_dtype(dtype)));
  }
  return outputs;
}

// What ytk_host_load() left for the next add_extension().
std::vector<PluginPtr>& loaded() {
  static std::vector<PluginPtr> plugins;
  return plugins;
}

std::vector<PluginPtr> load_all(const char* const* paths, int32_t count, int32_t threads) {
  std::vector<PluginPtr> plugins;
  for (int32_t i = 0; i < count; ++i) {
    auto plugin = std::make_shared<const Plugin>(paths[i], threads);
    for (const PluginPtr& other : plugins) {
      if (other->library.full_name() == plugin->library.full_name()) {
        throw HostError(Blame::library,
                        "plugin " + plugin->library.full_name() + " is given twice; the second is " + paths[i]);
      }
    }
    plugins.push_back(std::move(plugin));
  }
  return plugins;
}

std::vector<ov::Extension::Ptr> extensions() {
  std::vector<ov::Extension::Ptr> all;
  for (const PluginPtr& plugin : loaded()) {
    all.push_back(std::make_shared<PluginExtension>(plugin));
    all.push_back(std::make_shared<ov::frontend::onnx::ConversionExtension>(
        plugin->name, plugin->library.table().name_space,
        [plugin](const ov::frontend::NodeContext& node) { return convert(plugin, node); }));
  }
  return all;
}

}  // namespace

// Loads kernel libraries for the next Core::add_extension() with this library. Gives NULL, or what went wrong; the text
// stays valid until the same thread calls again.
extern "C" YTK_EXPORT const char* ytk_host_load(const char* const* paths, int32_t count, int32_t threads) {
  static thread_local std::string error;
  try {
    loaded() = load_all(paths, count, std::max(threads, 1));
    return nullptr;
  } catch (const std::exception& problem) {
    error = problem.what();
    return error.c_str();
  }
}

// What the loaded library of that index really registers, as "<namespace>::<Name> <version>". The text stays valid
// until the same thread calls again.
extern "C" YTK_EXPORT const char* ytk_host_registered(int32_t index) {
  static thread_local std::string text;
  const KernelLibrary& library = loaded().at(static_cast<size_t>(index))->library;
  text = library.full_name() + " " + library.table().version;
  return text.c_str();
}

// How often each node's kernel has been called in this process: see CallRecord::text(). The text stays valid until the same
// thread calls again.
extern "C" YTK_EXPORT const char* ytk_host_calls() {
  static thread_local std::string text;
  text = CallRecord::shared().text();
  return text.c_str();
}

OPENVINO_CREATE_EXTENSIONS(extensions());
