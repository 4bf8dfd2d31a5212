// The part of TensorRT 10's plugin interface that a plugin of ours touches, declared by hand from the public class
// documentation: no text of NVIDIA's headers. The order of the virtual functions is the interface. It serves the probe, the
// tests, and toolchains that ask for it (`tensorrt.abi = "declared"`); a real SDK's headers are always better.
// TensorRT 10 and later only: in 8.6 extents have 32 bits and IPluginCreator has no interface below it.
#ifndef YTK_DECLARED_NV_INFER_RUNTIME_H
#define YTK_DECLARED_NV_INFER_RUNTIME_H

#include <cstddef>
#include <cstdint>

#define NV_TENSORRT_MAJOR 10

typedef struct CUstream_st* cudaStream_t;

namespace nvinfer1 {

using AsciiChar = char;

enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBOOL = 4, kUINT8 = 5, kFP8 = 6, kBF16 = 7, kINT64 = 8 };
enum class TensorFormat : int32_t { kLINEAR = 0, kCHW2 = 1, kHWC8 = 2, kCHW4 = 3, kCHW16 = 4, kCHW32 = 5, kHWC = 8, kHWC16 = 11 };
enum class PluginFieldType : int32_t { kFLOAT16 = 0, kFLOAT32 = 1, kFLOAT64 = 2, kINT8 = 3, kINT16 = 4, kINT32 = 5, kCHAR = 6, kDIMS = 7, kUNKNOWN = 8, kBF16 = 9, kINT64 = 10 };
enum class DimensionOperation : int32_t { kSUM = 0, kPROD = 1, kMAX = 2, kMIN = 3, kSUB = 4, kEQUAL = 5, kLESS = 6, kFLOOR_DIV = 7, kCEIL_DIV = 8 };
enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };
enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };
enum class APILanguage : int32_t { kCPP = 0, kPYTHON = 1 };

struct Dims64 {
  int32_t nbDims;
  int64_t d[8];
};
using Dims = Dims64;

struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;
};
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min, max, opt;
};

struct PluginField {
  PluginField(AsciiChar const* n = nullptr, void const* d = nullptr, PluginFieldType t = PluginFieldType::kUNKNOWN, int32_t l = 0) noexcept
      : name(n), data(d), type(t), length(l) {}
  AsciiChar const* name;
  void const* data;
  PluginFieldType type;
  int32_t length;
};
struct PluginFieldCollection {
  int32_t nbFields;
  PluginField const* fields;
};

class ILogger {
 public:
  enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
  virtual void log(Severity severity, AsciiChar const* message) noexcept = 0;
  virtual ~ILogger() = default;
};
class ILoggerFinder {
 public:
  virtual ILogger* findLogger() = 0;
  virtual ~ILoggerFinder() = default;
};

// ---- expressions over extents: thin objects that point to the builder's own ------------------------------------------------

class IDimensionExpr;

namespace apiv {
class VRoot {
 public:
  virtual ~VRoot() noexcept = default;
};
class VDimensionExpr : public VRoot {
 public:
  virtual bool isConstant() const = 0;
  virtual int64_t getConstantValue() const = 0;
  virtual bool isSizeTensor() const = 0;
};
class VExprBuilder : public VRoot {
 public:
  virtual IDimensionExpr const* constant(int64_t value) = 0;
  virtual IDimensionExpr const* operation(DimensionOperation op, IDimensionExpr const& first, IDimensionExpr const& second) = 0;
  virtual IDimensionExpr const* declareSizeTensor(int32_t output, IDimensionExpr const& opt, IDimensionExpr const& upper) = 0;
};
} // namespace apiv

class INoCopy {
 protected:
  INoCopy() = default;
  virtual ~INoCopy() = default;
  INoCopy(INoCopy const&) = delete;
  INoCopy& operator=(INoCopy const&) = delete;
};
class IDimensionExpr : public INoCopy {
 public:
  bool isConstant() const noexcept { return mImpl->isConstant(); }
  int64_t getConstantValue() const noexcept { return mImpl->getConstantValue(); }

 protected:
  apiv::VDimensionExpr* mImpl = nullptr;
};
class IExprBuilder : public INoCopy {
 public:
  IDimensionExpr const* constant(int64_t value) noexcept { return mImpl->constant(value); }
  IDimensionExpr const* operation(DimensionOperation op, IDimensionExpr const& first, IDimensionExpr const& second) noexcept {
    return mImpl->operation(op, first, second);
  }

 protected:
  apiv::VExprBuilder* mImpl = nullptr;
};
struct DimsExprs {
  int32_t nbDims;
  IDimensionExpr const* d[8];
};

// ---- plugins ------------------------------------------------------------------------------------------------------------------

struct InterfaceInfo {
  AsciiChar const* kind;
  int32_t major;
  int32_t minor;
};
class IVersionedInterface {
 public:
  virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;
};
class IPluginResourceContext;
class IPluginCapability : public IVersionedInterface {};
class IPluginV3 : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3", 1, 0}; }
  virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
  virtual IPluginV3* clone() noexcept = 0;
};
class IPluginV3OneCore : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
  virtual AsciiChar const* getPluginName() const noexcept = 0;
  virtual AsciiChar const* getPluginVersion() const noexcept = 0;
  virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
};
class IPluginV3OneBuild : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
  virtual int32_t configurePlugin(DynamicPluginTensorDesc const* in, int32_t nin, DynamicPluginTensorDesc const* out, int32_t nout) noexcept = 0;
  virtual int32_t getOutputDataTypes(DataType* types, int32_t nout, DataType const* inputs, int32_t nin) const noexcept = 0;
  virtual int32_t getOutputShapes(DimsExprs const* in, int32_t nin, DimsExprs const* shapes, int32_t nshapes, DimsExprs* out, int32_t nout, IExprBuilder& builder) noexcept = 0;
  virtual bool supportsFormatCombination(int32_t position, DynamicPluginTensorDesc const* tensors, int32_t nin, int32_t nout) noexcept = 0;
  virtual int32_t getNbOutputs() const noexcept = 0;
  virtual size_t getWorkspaceSize(DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*, int32_t) const noexcept { return 0; }
  virtual int32_t getValidTactics(int32_t*, int32_t) noexcept { return 0; }
  virtual int32_t getNbTactics() noexcept { return 0; }
  virtual AsciiChar const* getTimingCacheID() noexcept { return nullptr; }
  virtual int32_t getFormatCombinationLimit() noexcept { return 100; }
  virtual AsciiChar const* getMetadataString() noexcept { return nullptr; }
};
class IPluginV3OneRuntime : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
  virtual int32_t setTactic(int32_t) noexcept { return 0; }
  virtual int32_t onShapeChange(PluginTensorDesc const* in, int32_t nin, PluginTensorDesc const* out, int32_t nout) noexcept = 0;
  virtual int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const* out, void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept = 0;
  virtual IPluginV3* attachToContext(IPluginResourceContext* context) noexcept = 0;
  virtual PluginFieldCollection const* getFieldsToSerialize() noexcept = 0;
};
class IPluginCreatorInterface : public IVersionedInterface {};
class IPluginCreatorV3One : public IPluginCreatorInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
  virtual IPluginV3* createPlugin(AsciiChar const* name, PluginFieldCollection const* fields, TensorRTPhase phase) noexcept = 0;
  virtual PluginFieldCollection const* getFieldNames() noexcept = 0;
  virtual AsciiChar const* getPluginName() const noexcept = 0;
  virtual AsciiChar const* getPluginVersion() const noexcept = 0;
  virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
};

} // namespace nvinfer1

#endif
