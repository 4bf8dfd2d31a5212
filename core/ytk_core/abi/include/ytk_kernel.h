/* The kernel contract of yasp-toolkit, ABI 1: plain C, no engine header, no C++ type.
 *
 * One kernel source serves every engine of its device kind. A kernel library exports ytk_plugin(); the engine's host
 * library (CPU engines) or a rendered plugin skeleton (TensorRT) calls through the table it returns.
 *
 * How it grows: ytk_context and ytk_plugin_table begin with their size and the ABI version. Fields are only ever
 * appended. A kernel reads a field only if `size` covers it; a host never assumes more than the library's `size`.
 * ytk_tensor and ytk_attr are passed as arrays and therefore never change their size within one ABI version.
 */
#ifndef YTK_KERNEL_H
#define YTK_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define YTK_ABI_VERSION 1u
#define YTK_MAX_RANK 8

/* Element types; the numbers are ONNX TensorProto.DataType. */
enum ytk_dtype {
  YTK_DTYPE_NONE = 0,
  YTK_FLOAT32 = 1,
  YTK_UINT8 = 2,
  YTK_INT8 = 3,
  YTK_INT32 = 6,
  YTK_INT64 = 7,
  YTK_BOOL = 9,
  YTK_FLOAT16 = 10,
  YTK_FLOAT64 = 11,
  YTK_BFLOAT16 = 16
};

/* Memory layouts. Linear is row-major over dims. The vectorised ones put channels (dim 1) last, padded to a multiple of
 * the vector width; dims always hold the logical, unpadded NCHW extents. */
enum ytk_format { YTK_LINEAR = 0, YTK_HWC = 1, YTK_HWC8 = 2, YTK_HWC16 = 3, YTK_CHW4 = 4, YTK_CHW16 = 5, YTK_CHW32 = 6 };

/* Results of launch and shape; anything but YTK_OK fails the inference with the plugin's name and this number. */
enum ytk_status {
  YTK_OK = 0,
  YTK_BAD_ARITY = 1,
  YTK_BAD_DTYPE = 2,
  YTK_BAD_SHAPE = 3,
  YTK_BAD_ATTRIBUTE = 4,
  YTK_BAD_VARIANT = 5,
  YTK_WORKSPACE_TOO_SMALL = 6,
  YTK_DEVICE_ERROR = 7,
  YTK_UNSUPPORTED = 8,
  YTK_BAD_ALIGNMENT = 9,
  YTK_OVERFLOW = 10 /* more results than the declared maximum has place for */
};

/* A tensor the caller owns. data: on the device of the kernel's kind; NULL in shape(). dims[i] is -1 where unknown
 * (only in shape()). */
typedef struct ytk_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t dims[YTK_MAX_RANK];
  int32_t format;
  int32_t reserved;
  float scale; /* of int8 tensors; 1 otherwise */
  int32_t reserved2;
} ytk_tensor;

enum ytk_attr_type { YTK_ATTR_INTS = 1, YTK_ATTR_FLOATS = 2, YTK_ATTR_STRING = 3 };

/* A node attribute. Scalars are arrays of count 1; a string's count is its length without the final zero. */
typedef struct ytk_attr {
  const char* name;
  int32_t type;
  int32_t count;
  const int64_t* ints;
  const double* floats;
  const char* string;
} ytk_attr;

/* What a call gets besides its tensors. */
typedef struct ytk_context {
  uint32_t size;        /* sizeof of what the caller filled in */
  uint32_t abi_version; /* YTK_ABI_VERSION of the caller */
  const ytk_attr* attrs;
  int32_t attr_count;
  int32_t variant; /* index into the table's variants: the dtypes and formats in effect */
  void* workspace; /* 64-byte aligned, workspace_bytes long, contents undefined */
  uint64_t workspace_bytes;
  void* stream;    /* CUstream on a GPU; NULL on a CPU */
  int32_t threads; /* CPU threads the kernel may use; 1 or more */
  int32_t reserved;
} ytk_context;

/* The launcher allocates nothing, uses only the given stream, keeps no pointer, writes nothing but out and workspace. */
typedef int (*ytk_launch_fn)(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout);
/* Fills dtype, rank, dims of every output from the inputs' (dims may hold -1: then an output dim may be -1). */
typedef int (*ytk_shape_fn)(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout);
/* Bytes of workspace for these tensors, or a negative number if they are not acceptable. */
typedef int64_t (*ytk_workspace_fn)(const ytk_context* ctx, const ytk_tensor* in, int nin, const ytk_tensor* out, int nout);

/* One acceptable combination of dtype and format of every tensor together. */
typedef struct ytk_variant {
  const char* id;
  const int32_t* in_dtypes;
  const int32_t* in_formats;
  const int32_t* out_dtypes;
  const int32_t* out_formats;
} ytk_variant;

typedef struct ytk_attr_decl {
  const char* name;
  int32_t type;
  int32_t required;
} ytk_attr_decl;

typedef struct ytk_plugin_table {
  uint32_t size;
  uint32_t abi_version;
  const char* name_space; /* "" is the empty namespace */
  const char* name;
  const char* version;
  int32_t nin;
  int32_t nout;
  int32_t variant_count;
  int32_t attr_count;
  const ytk_variant* variants;
  const ytk_attr_decl* attrs;
  ytk_launch_fn launch;
  ytk_shape_fn shape;
  ytk_workspace_fn workspace; /* NULL: none needed */
  const char* meta_digest;    /* digest of the plugin_meta this library was rendered from */
} ytk_plugin_table;

#if defined(__GNUC__)
#define YTK_EXPORT __attribute__((visibility("default")))
#else
#define YTK_EXPORT
#endif

/* The only symbol that a CPU kernel library exports. */
YTK_EXPORT const ytk_plugin_table* ytk_plugin(void);

#ifdef __cplusplus
}
#endif
#endif /* YTK_KERNEL_H */
