// A TensorRT that only asks: loads a plugin library, does with it what a builder and a runtime do, and prints what it saw.
//   trt_host LIBRARY LIBCUDA FIELD...     FIELD: i:name:1,2  f:name:2.5  s:name:text
// Built once per interface (-DMAJOR=8 or 10) against the declared headers; never against TensorRT itself.
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

using namespace nvinfer1;

namespace {

using Extent = decltype(Dims::d[0] + 0);

// ---- an expression builder over plain numbers; -1 stands for an extent that is not known yet ----------------------------
struct Expr;
struct ExprImpl final : apiv::VDimensionExpr {
  Extent value;
  explicit ExprImpl(Extent v) : value(v) {}
  bool isConstant() const override { return value >= 0; }
  Extent getConstantValue() const override { return value; }
#if MAJOR >= 10
  bool isSizeTensor() const override { return false; }
#endif
};
struct Expr final : IDimensionExpr {
  ExprImpl impl;
  explicit Expr(Extent v) : impl(v) { mImpl = &impl; }
};
struct BuilderImpl final : apiv::VExprBuilder {
  std::deque<Expr> all;
  IDimensionExpr const* make(Extent v) { all.emplace_back(v); return &all.back(); }
  IDimensionExpr const* constant(Extent v) override { return make(v); }
  IDimensionExpr const* operation(DimensionOperation op, IDimensionExpr const& l, IDimensionExpr const& r) override {
    const Extent a = l.getConstantValue(), b = r.getConstantValue();
    if (a == -1 || b == -1) return make(-1);
    switch (op) {
      case DimensionOperation::kSUM: return make(a + b);
      case DimensionOperation::kPROD: return make(a * b);
      case DimensionOperation::kMAX: return make(a > b ? a : b);
      case DimensionOperation::kMIN: return make(a < b ? a : b);
      case DimensionOperation::kSUB: return make(a - b);
      case DimensionOperation::kEQUAL: return make(a == b);
      case DimensionOperation::kLESS: return make(a < b);
      case DimensionOperation::kFLOOR_DIV: return make(a / b);
      case DimensionOperation::kCEIL_DIV: return make((a + b - 1) / b);
    }
    return nullptr;
  }
#if MAJOR >= 10
  IDimensionExpr const* declareSizeTensor(int32_t, IDimensionExpr const&, IDimensionExpr const&) override { return nullptr; }
#endif
};
struct Builder final : IExprBuilder {
  BuilderImpl impl;
  Builder() { mImpl = &impl; }
};

struct Logger final : ILogger {
  void log(Severity, AsciiChar const* message) noexcept override { std::printf("log %s\n", message); }
} logger;
struct Finder final : ILoggerFinder {
  ILogger* findLogger() override { return &logger; }
} finder;

// ---- fields as a parser writes them --------------------------------------------------------------------------------------
struct Fields {
  std::deque<std::string> names, texts;
  std::deque<std::vector<int32_t>> ints;
  std::deque<std::vector<float>> floats;
  std::vector<PluginField> fields;
  PluginFieldCollection collection{};
  void add(const std::string& word) {
    const size_t colon = word.find(':', 2);
    names.push_back(word.substr(2, colon - 2));
    const std::string value = word.substr(colon + 1);
    if (word[0] == 's') {
      texts.push_back(value);
      fields.emplace_back(names.back().c_str(), texts.back().c_str(), PluginFieldType::kCHAR, static_cast<int32_t>(value.size()));
      return;
    }
    std::vector<double> numbers;
    for (const char* at = value.c_str(); *at != 0;) {
      char* end = nullptr;
      numbers.push_back(std::strtod(at, &end));
      at = *end == ',' ? end + 1 : end;
    }
    if (word[0] == 'i') {
      ints.emplace_back(numbers.begin(), numbers.end());
      fields.emplace_back(names.back().c_str(), ints.back().data(), PluginFieldType::kINT32, static_cast<int32_t>(numbers.size()));
    } else {
      floats.emplace_back(numbers.begin(), numbers.end());
      fields.emplace_back(names.back().c_str(), floats.back().data(), PluginFieldType::kFLOAT32, static_cast<int32_t>(numbers.size()));
    }
  }
  PluginFieldCollection* get() {
    collection = {static_cast<int32_t>(fields.size()), fields.data()};
    return &collection;
  }
};

Dims dims(std::initializer_list<long> extents) {
  Dims out{};
  for (long e : extents) out.d[out.nbDims++] = static_cast<Extent>(e);
  return out;
}
PluginTensorDesc desc(Dims d, DataType type, TensorFormat format) { return {d, type, format, type == DataType::kINT8 ? 0.5f : 1.0f}; }
DynamicPluginTensorDesc dynamic(Dims d, Dims max, DataType type, TensorFormat format) {
  DynamicPluginTensorDesc out{};
  out.desc = desc(d, type, format);
  out.min = d;
  out.max = max;
  return out;
}

// What every fake bundle is tried with: its inputs and outputs, by the number of inputs and the rank of the first.
struct Case {
  std::vector<Dims> in, max, out;
  std::vector<DataType> types{}; // of inputs and outputs; none: all float
  std::vector<TensorFormat> formats{};
  DataType type(size_t t) const { return types.empty() ? DataType::kFLOAT : types[t]; }
  TensorFormat format(size_t t) const { return formats.empty() ? TensorFormat::kLINEAR : formats[t]; }
};
Case case_of(const std::string& name) {
  if (name == "Scale") return {{dims({5, 8}), dims({8})}, {dims({40, 8}), dims({8})}, {dims({5, 8}), dims({3})}};
  if (name == "Depthwise") return {{dims({1, 16, 2, 2})}, {dims({4, 16, 8, 8})}, {dims({1, 16, 2, 2})}};
  if (name == "Quantised")
    return {{dims({1, 32, 2, 2}), dims({6})}, {dims({4, 32, 8, 8}), dims({6})}, {dims({1, 32, 2, 2}), dims({6})},
            {DataType::kINT8, DataType::kINT32, DataType::kINT8, DataType::kINT32},
            {TensorFormat::kCHW32, TensorFormat::kLINEAR, TensorFormat::kCHW32, TensorFormat::kLINEAR}};
  return {{dims({3, 36, 64})}, {dims({64, 36, 64})}, {dims({3, 4, 8, 8})}};
}

template <class Supports>
void print_formats(int count, Supports supports) {
  // Every tensor in the same type and format, as far as the plugin goes along.
  const struct { DataType type; TensorFormat format; const char* name; } tries[] = {
      {DataType::kFLOAT, TensorFormat::kLINEAR, "f32"},    {DataType::kHALF, TensorFormat::kLINEAR, "f16"},
      {DataType::kHALF, TensorFormat::kHWC8, "f16hwc8"},   {DataType::kINT8, TensorFormat::kCHW32, "i8chw32"},
      {DataType::kINT32, TensorFormat::kLINEAR, "i32"},    {static_cast<DataType>(8), TensorFormat::kLINEAR, "i64"},
      {static_cast<DataType>(99), TensorFormat::kLINEAR, "unknown"}};
  for (const auto& t : tries) {
    int position = 0;
    while (position < count && supports(position, t.type, t.format)) ++position;
    std::printf("formats %s %d of %d\n", t.name, position, count);
  }
}

void print_shape(const DimsExprs& out) {
  std::printf("shape");
  for (int d = 0; d < out.nbDims; ++d) std::printf(" %ld", static_cast<long>(out.d[d]->getConstantValue()));
  std::printf("\n");
}

void* const kWorkspace = reinterpret_cast<void*>(0x40000);
const auto kStream = reinterpret_cast<cudaStream_t>(0x5EA);
void const* const kInputs[] = {reinterpret_cast<void*>(0x10000), reinterpret_cast<void*>(0x11000)};
void* const kOutputs[] = {reinterpret_cast<void*>(0x20000), reinterpret_cast<void*>(0x21000)};

} // namespace

int main(int argc, char** argv) {
  void* driver = dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr || library == nullptr) {
    std::printf("dlopen %s\n", dlerror());
    return 3;
  }
  reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(library, "setLoggerFinder"))(&finder);
  Fields fields;
  for (int k = 3; k < argc; ++k) fields.add(argv[k]);
  int32_t count = 0;
  Builder builder;
#if MAJOR >= 10
  auto list = reinterpret_cast<IPluginCreatorInterface* const* (*)(int32_t&)>(dlsym(library, "getCreators"))(count);
  auto& creator = *static_cast<IPluginCreatorV3One*>(list[0]);
  std::printf("creators %d %s::%s %s\n", count, creator.getPluginNamespace(), creator.getPluginName(), creator.getPluginVersion());
  const Case c = case_of(creator.getPluginName());
  const int nin = static_cast<int>(c.in.size()), nout = static_cast<int>(c.out.size());
  IPluginV3* made = creator.createPlugin("node", fields.get(), TensorRTPhase::kBUILD);
  if (made == nullptr) return std::printf("created nothing\n"), 0;
  IPluginV3* plugin = made->clone();
  delete made;
  auto& core = *static_cast<IPluginV3OneCore*>(plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
  auto& build = *static_cast<IPluginV3OneBuild*>(plugin->getCapabilityInterface(PluginCapabilityType::kBUILD));
  std::printf("core %s::%s %s outputs %d\n", core.getPluginNamespace(), core.getPluginName(), core.getPluginVersion(), build.getNbOutputs());
  std::vector<DynamicPluginTensorDesc> all;
  for (int t = 0; t < nin + nout; ++t) all.push_back(dynamic(t < nin ? c.in[t] : c.out[t - nin], t < nin ? c.max[t] : c.out[t - nin], c.type(t), c.format(t)));
  print_formats(nin + nout, [&](int position, DataType type, TensorFormat format) {
    std::vector<DynamicPluginTensorDesc> tried = all;
    for (auto& d : tried) d.desc.type = type, d.desc.format = format;
    return build.supportsFormatCombination(position, tried.data(), nin, nout);
  });
  int own = 0;
  while (own < nin + nout && build.supportsFormatCombination(own, all.data(), nin, nout)) ++own;
  std::printf("formats own %d of %d\n", own, nin + nout);
  DataType types[8];
  const DataType halves[] = {DataType::kHALF, DataType::kHALF}, floats[] = {DataType::kFLOAT, DataType::kFLOAT};
  build.getOutputDataTypes(types, nout, halves, nin);
  std::printf("types of halves %d\n", static_cast<int>(types[0]));
  build.getOutputDataTypes(types, nout, floats, nin);
  std::printf("types of floats %d\n", static_cast<int>(types[0]));
  std::vector<DimsExprs> in(nin), out(nout);
  for (int i = 0; i < nin; ++i) {
    in[i].nbDims = c.in[i].nbDims;
    for (int d = 0; d < c.in[i].nbDims; ++d) in[i].d[d] = builder.impl.make(c.in[i].d[d]);
  }
  std::printf("shapes %d\n", build.getOutputShapes(in.data(), nin, nullptr, 0, out.data(), nout, builder));
  for (const DimsExprs& shape : out) print_shape(shape);
  std::printf("wrong arity %d\n", build.getOutputShapes(in.data(), nin + 1, nullptr, 0, out.data(), nout, builder));
  std::printf("configure %d\n", build.configurePlugin(all.data(), nin, all.data() + nin, nout));
  auto bad = all;
  bad[0].desc.dims.d[1] = 7;
  std::printf("configure bad %d\n", build.configurePlugin(bad.data(), nin, bad.data() + nin, nout));
  std::printf("workspace %zu\n", build.getWorkspaceSize(all.data(), nin, all.data() + nin, nout));
  // Through the engine: the fields that a build serialises come back in the runtime phase.
  auto& built = *static_cast<IPluginV3OneRuntime*>(plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  IPluginV3* loaded = creator.createPlugin("node", built.getFieldsToSerialize(), TensorRTPhase::kRUNTIME);
  std::printf("without state %d\n", creator.createPlugin("node", fields.get(), TensorRTPhase::kRUNTIME) == nullptr);
  delete plugin;
  auto& first = *static_cast<IPluginV3OneRuntime*>(loaded->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  IPluginV3* attached = first.attachToContext(nullptr);
  delete loaded;
  auto& runtime = *static_cast<IPluginV3OneRuntime*>(attached->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
#else
  auto list = reinterpret_cast<IPluginCreator* const* (*)(int32_t&)>(dlsym(library, "getPluginCreators"))(count);
  IPluginCreator& creator = *list[0];
  std::printf("creators %d %s::%s %s\n", count, creator.getPluginNamespace(), creator.getPluginName(), creator.getPluginVersion());
  const Case c = case_of(creator.getPluginName());
  const int nin = static_cast<int>(c.in.size()), nout = static_cast<int>(c.out.size());
  auto* made = static_cast<IPluginV2DynamicExt*>(creator.createPlugin("node", fields.get()));
  if (made == nullptr) return std::printf("created nothing\n"), 0;
  made->setPluginNamespace("yasp");
  IPluginV2DynamicExt* plugin = made->clone();
  made->destroy();
  std::printf("core %s::%s %s outputs %d\n", plugin->getPluginNamespace(), plugin->getPluginType(), plugin->getPluginVersion(), plugin->getNbOutputs());
  std::vector<PluginTensorDesc> all;
  for (int t = 0; t < nin + nout; ++t) all.push_back(desc(t < nin ? c.in[t] : c.out[t - nin], c.type(t), c.format(t)));
  print_formats(nin + nout, [&](int position, DataType type, TensorFormat format) {
    std::vector<PluginTensorDesc> tried = all;
    for (auto& d : tried) d.type = type, d.format = format;
    return plugin->supportsFormatCombination(position, tried.data(), nin, nout);
  });
  int own = 0;
  while (own < nin + nout && plugin->supportsFormatCombination(own, all.data(), nin, nout)) ++own;
  std::printf("formats own %d of %d\n", own, nin + nout);
  const DataType halves[] = {DataType::kHALF, DataType::kHALF}, floats[] = {DataType::kFLOAT, DataType::kFLOAT};
  std::printf("types of halves %d\n", static_cast<int>(plugin->getOutputDataType(0, halves, nin)));
  std::printf("types of floats %d\n", static_cast<int>(plugin->getOutputDataType(0, floats, nin)));
  std::vector<DimsExprs> in(nin);
  for (int i = 0; i < nin; ++i) {
    in[i].nbDims = c.in[i].nbDims;
    for (int d = 0; d < c.in[i].nbDims; ++d) in[i].d[d] = builder.impl.make(c.in[i].d[d]);
  }
  std::printf("shapes 0\n");
  for (int o = 0; o < nout; ++o) print_shape(plugin->getOutputDimensions(o, in.data(), nin, builder));
  std::printf("wrong arity %d\n", plugin->getOutputDimensions(0, in.data(), nin + 1, builder).nbDims == 0);
  std::vector<DynamicPluginTensorDesc> ranges;
  for (int t = 0; t < nin + nout; ++t) ranges.push_back(dynamic(all[t].dims, all[t].dims, c.type(t), c.format(t)));
  plugin->configurePlugin(ranges.data(), nin, ranges.data() + nin, nout);
  ranges[0].desc.dims.d[1] = 7;
  plugin->configurePlugin(ranges.data(), nin, ranges.data() + nin, nout);
  auto largest = all;
  for (int i = 0; i < nin; ++i) largest[i].dims = c.max[i];
  std::printf("workspace %zu\n", plugin->getWorkspaceSize(largest.data(), nin, largest.data() + nin, nout));
  std::vector<char> state(plugin->getSerializationSize());
  plugin->serialize(state.data());
  plugin->destroy();
  auto refused = [&](const std::vector<char>& bytes) { return creator.deserializePlugin("node", bytes.data(), bytes.size()) == nullptr; };
  auto newer = state, longer = state, shorter = state;
  newer[4] = 2;
  longer.push_back(0);
  shorter.pop_back();
  std::printf("other states %d %d %d %d\n", refused(newer), refused(longer), refused(shorter), refused({}));
  auto& runtime = *static_cast<IPluginV2DynamicExt*>(creator.deserializePlugin("node", state.data(), state.size()));
#endif
  std::vector<PluginTensorDesc> ins, outs;
  for (int i = 0; i < nin; ++i) ins.push_back(desc(c.in[i], c.type(i), c.format(i)));
  for (int o = 0; o < nout; ++o) outs.push_back(desc(c.out[o], c.type(nin + o), c.format(nin + o)));
#if MAJOR >= 10
  std::printf("prepare %d\n", runtime.onShapeChange(ins.data(), nin, outs.data(), nout));
#else
  std::printf("prepare %d\n", runtime.initialize());
#endif
  auto log = static_cast<char*>(dlsym(driver, "fake_log"));
  std::printf("driver %s", log);
  log[0] = 0;
  std::printf("enqueue %d\n", runtime.enqueue(ins.data(), outs.data(), kInputs, kOutputs, kWorkspace, kStream));
  std::printf("driver %s", log);
  log[0] = 0;
  outs[0].dims.d[0] += 1;
  std::printf("enqueue bad shape %d\n", runtime.enqueue(ins.data(), outs.data(), kInputs, kOutputs, kWorkspace, kStream));
  outs[0].dims.d[0] -= 1;
  outs[0].type = c.types.empty() ? DataType::kINT8 : DataType::kFLOAT;
  std::printf("enqueue bad type %d\n", runtime.enqueue(ins.data(), outs.data(), kInputs, kOutputs, kWorkspace, kStream));
#if MAJOR >= 10
  delete attached;
#else
  runtime.destroy();
#endif
  std::printf("end %zu\n", std::strlen(log));
  return 0;
}
