// Kernel libraries behind the plain C contract of ytk_kernel.h, for any CPU engine: loading, choosing a variant,
// calling. No engine header here; the part that knows an engine is <engine>_host.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "ytk_kernel.h"

namespace ytk {

// Of the workspace, and of every tensor that a kernel is given.
constexpr size_t kAlignment = 64;

// Who has to act: on a file that is no kernel library, on a node and a plugin that do not fit, or on the kernel's code.
enum class Blame { library, contract, kernel };

// Every message names the plugin. The prefix lets the Python side find our line, and the blame, in an engine's longer
// text.
class HostError : public std::runtime_error {
 public:
  HostError(Blame blame, const std::string& message);
};

using AttributeValue = std::variant<std::vector<int64_t>, std::vector<double>, std::string>;

// The attributes of one node, in the form that kernels read. Immutable: clones of a node share one set.
class AttributeSet {
 public:
  explicit AttributeSet(std::map<std::string, AttributeValue> values);
  AttributeSet(const AttributeSet&) = delete;
  AttributeSet& operator=(const AttributeSet&) = delete;

  const std::map<std::string, AttributeValue>& values() const { return values_; }
  const std::vector<ytk_attr>& views() const { return views_; }

 private:
  std::map<std::string, AttributeValue> values_;  // a map: its elements never move, so the views stay valid
  std::vector<ytk_attr> views_;
};

// One loaded kernel library. It is never unloaded: engines keep nodes, and nodes keep function pointers.
class KernelLibrary {
 public:
  // Loads the library and checks its table; `threads` is what its kernels may use.
  KernelLibrary(const std::string& path, int32_t threads);

  const ytk_plugin_table& table() const { return *table_; }
  const std::string& full_name() const { return full_name_; }  // "yasp::Col2im"
  size_t input_count() const { return static_cast<size_t>(table_->nin); }
  size_t output_count() const { return static_cast<size_t>(table_->nout); }

  void check_arity(size_t inputs) const;
  // Index of the variant that takes exactly these dtypes in linear layout, or -1.
  int32_t find_variant(const std::vector<int32_t>& dtypes) const;
  // Index of the variant of that id, which an engine file names.
  int32_t variant_named(const std::string& id) const;
  // Throws: no variant takes these dtypes; the message lists those there are.
  [[noreturn]] void refuse_dtypes(const std::vector<int32_t>& dtypes) const;
  // Names, types and presence of the declared attributes; throws for a missing required one.
  void check_attributes(const std::map<std::string, AttributeValue>& values) const;
  // Dtype, rank and dims of every output; dims are -1 where the inputs' leave them open.
  std::vector<ytk_tensor> infer(const AttributeSet& attributes, int32_t variant,
                                const std::vector<ytk_tensor>& inputs) const;
  void launch(const AttributeSet& attributes, int32_t variant, const std::vector<ytk_tensor>& inputs,
              std::vector<ytk_tensor>& outputs) const;

 private:
  ytk_context context(const AttributeSet& attributes, int32_t variant) const;
  void check_table(const std::string& path) const;
  [[noreturn]] void fail(Blame blame, const std::string& what) const;

  const ytk_plugin_table* table_ = nullptr;
  std::string full_name_;
  int32_t threads_;
};

// Scratch memory shared by all kernels of the process. Several requests may run at once: each call leases a buffer of
// its own, and there are never more buffers than calls that ran at the same time.
class WorkspacePool {
 public:
  class Lease {
   public:
    Lease(WorkspacePool& pool, size_t bytes);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    void* data() const { return buffer_.memory.get(); }

   private:
    friend class WorkspacePool;
    struct Free {
      void operator()(void* memory) const;
    };
    struct Buffer {
      std::unique_ptr<void, Free> memory;
      size_t bytes = 0;
    };
    WorkspacePool& pool_;
    Buffer buffer_;
  };

  static WorkspacePool& shared();

 private:
  Lease::Buffer take(size_t bytes);
  void give_back(Lease::Buffer buffer);

  std::mutex mutex_;
  std::vector<Lease::Buffer> idle_;
};

std::string dtype_name(int32_t dtype);
std::string status_name(int status);

}  // namespace ytk
