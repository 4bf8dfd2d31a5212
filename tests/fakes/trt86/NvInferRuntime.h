// The part of TensorRT 8.6's plugin interface that a plugin of ours touches, declared by hand from the public class
// documentation, for tests only: what is proprietary cannot be in a test. Builds take the headers of an SDK.
#pragma once

#include <cstddef>
#include <cstdint>

#define NV_TENSORRT_MAJOR 8

typedef struct CUstream_st* cudaStream_t;

namespace nvinfer1 {

using AsciiChar = char;

enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBOOL = 4, kUINT8 = 5, kFP8 = 6 };
enum class TensorFormat : int32_t { kLINEAR = 0, kCHW2 = 1, kHWC8 = 2, kCHW4 = 3, kCHW16 = 4, kCHW32 = 5, kHWC = 8, kHWC16 = 11 };
using PluginFormat = TensorFormat;
enum class PluginFieldType : int32_t { kFLOAT16 = 0, kFLOAT32 = 1, kFLOAT64 = 2, kINT8 = 3, kINT16 = 4, kINT32 = 5, kCHAR = 6, kDIMS = 7, kUNKNOWN = 8 };
enum class DimensionOperation : int32_t { kSUM = 0, kPROD = 1, kMAX = 2, kMIN = 3, kSUB = 4, kEQUAL = 5, kLESS = 6, kFLOOR_DIV = 7, kCEIL_DIV = 8 };

struct Dims32 {
  int32_t nbDims;
  int32_t d[8];
};
using Dims = Dims32;
struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;
};
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min, max;
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

class IDimensionExpr;
namespace apiv {
class VRoot {
 public:
  virtual ~VRoot() noexcept = default;
};
class VDimensionExpr : public VRoot {
 public:
  virtual bool isConstant() const = 0;
  virtual int32_t getConstantValue() const = 0;
};
class VExprBuilder : public VRoot {
 public:
  virtual IDimensionExpr const* constant(int32_t value) = 0;
  virtual IDimensionExpr const* operation(DimensionOperation op, IDimensionExpr const& first, IDimensionExpr const& second) = 0;
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
  int32_t getConstantValue() const noexcept { return mImpl->getConstantValue(); }

 protected:
  apiv::VDimensionExpr* mImpl = nullptr;
};
class IExprBuilder : public INoCopy {
 public:
  IDimensionExpr const* constant(int32_t value) noexcept { return mImpl->constant(value); }
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

class IPluginV2 {
 public:
  virtual int32_t getTensorRTVersion() const noexcept { return 8601; }
  virtual AsciiChar const* getPluginType() const noexcept = 0;
  virtual AsciiChar const* getPluginVersion() const noexcept = 0;
  virtual int32_t getNbOutputs() const noexcept = 0;
  virtual Dims getOutputDimensions(int32_t, Dims const*, int32_t) noexcept { return {}; }
  virtual bool supportsFormat(DataType, PluginFormat) const noexcept { return false; }
  virtual void configureWithFormat(Dims const*, int32_t, Dims const*, int32_t, DataType, PluginFormat, int32_t) noexcept {}
  virtual int32_t initialize() noexcept = 0;
  virtual void terminate() noexcept = 0;
  virtual size_t getWorkspaceSize(int32_t) const noexcept { return 0; }
  virtual int32_t enqueue(int32_t, void const* const*, void* const*, void*, cudaStream_t) noexcept { return 1; }
  virtual size_t getSerializationSize() const noexcept = 0;
  virtual void serialize(void* buffer) const noexcept = 0;
  virtual void destroy() noexcept = 0;
  virtual IPluginV2* clone() const noexcept = 0;
  virtual void setPluginNamespace(AsciiChar const* name) noexcept = 0;
  virtual AsciiChar const* getPluginNamespace() const noexcept = 0;

 protected:
  virtual ~IPluginV2() noexcept = default;
};
class IPluginV2Ext : public IPluginV2 {
 public:
  virtual DataType getOutputDataType(int32_t index, DataType const* inputs, int32_t nin) const noexcept = 0;
  virtual void attachToContext(void*, void*, void*) noexcept {}
  virtual void detachFromContext() noexcept {}
  IPluginV2Ext* clone() const noexcept override = 0;
};
class IPluginV2DynamicExt : public IPluginV2Ext {
 public:
  IPluginV2DynamicExt* clone() const noexcept override = 0;
  virtual DimsExprs getOutputDimensions(int32_t index, DimsExprs const* in, int32_t nin, IExprBuilder& builder) noexcept = 0;
  virtual bool supportsFormatCombination(int32_t position, PluginTensorDesc const* tensors, int32_t nin, int32_t nout) noexcept = 0;
  virtual void configurePlugin(DynamicPluginTensorDesc const* in, int32_t nin, DynamicPluginTensorDesc const* out, int32_t nout) noexcept = 0;
  virtual size_t getWorkspaceSize(PluginTensorDesc const* in, int32_t nin, PluginTensorDesc const* out, int32_t nout) const noexcept = 0;
  virtual int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const* out, void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept = 0;
};
class IPluginCreator {
 public:
  virtual int32_t getTensorRTVersion() const noexcept { return 8601; }
  virtual AsciiChar const* getPluginName() const noexcept = 0;
  virtual AsciiChar const* getPluginVersion() const noexcept = 0;
  virtual PluginFieldCollection const* getFieldNames() noexcept = 0;
  virtual IPluginV2* createPlugin(AsciiChar const* name, PluginFieldCollection const* fields) noexcept = 0;
  virtual IPluginV2* deserializePlugin(AsciiChar const* name, void const* data, size_t length) noexcept = 0;
  virtual void setPluginNamespace(AsciiChar const* name) noexcept = 0;
  virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
  IPluginCreator() = default;
  virtual ~IPluginCreator() = default;
};

} // namespace nvinfer1
