// The probe as a program of the target's machine, for libraries that the build machine's Python cannot load:
//   probe REQUEST ANSWER
// REQUEST is lines of words (strings in hex, so that a word has no space), ANSWER is the JSON that child.py writes.
// Loads the library, reads its table and calls its shape function. The library's code runs here and may do anything.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "NvInferRuntime.h" // declared by hand, beside this file's directory
#include "ytk_kernel.h"

namespace {

// IPluginCreator as TensorRT 8.6 has it: no interface below it. One that was built with headers of 10 looks otherwise.
struct Creator86 {
  virtual int32_t getTensorRTVersion() const noexcept = 0;
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const nvinfer1::PluginFieldCollection* getFieldNames() noexcept = 0;
  virtual void* createPlugin(const char*, const nvinfer1::PluginFieldCollection*) noexcept = 0;
  virtual void* deserializePlugin(const char*, const void*, size_t) noexcept = 0;
  virtual void setPluginNamespace(const char*) noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
};

struct Attribute {
  std::string name, text;
  std::vector<int64_t> ints;
  std::vector<double> floats;
  int32_t type = 0;
};
struct Case {
  int variant = 0;
  std::vector<std::vector<int64_t>> inputs;
};
struct Request {
  std::string library;
  std::vector<std::string> preload;
  int outputs = 0;
  int tensorrt = 0; // its major version; 0: another engine
  std::deque<Attribute> attributes;
  std::vector<Case> cases;
};

std::string from_hex(const std::string& word) {
  std::string text;
  for (size_t k = 1; k + 1 < word.size(); k += 2) text += static_cast<char>(std::stoi(word.substr(k, 2), nullptr, 16));
  return text;
}

// A hex word begins with 'x': an empty string is a word too.
std::string next_string(std::istream& line) {
  std::string word;
  line >> word;
  return from_hex(word);
}

Attribute read_attribute(std::istream& line) {
  Attribute attribute;
  size_t count = 0;
  attribute.name = next_string(line);
  line >> attribute.type >> count;
  if (attribute.type == YTK_ATTR_STRING) attribute.text = next_string(line);
  for (size_t k = 0; k < count && attribute.type != YTK_ATTR_STRING; ++k) {
    if (attribute.type == YTK_ATTR_INTS) {
      attribute.ints.emplace_back();
      line >> attribute.ints.back();
    } else {
      std::string word;
      line >> word;
      attribute.floats.push_back(std::strtod(word.c_str(), nullptr)); // also "inf", and hexadecimal floats
    }
  }
  return attribute;
}

Case read_case(std::istream& line) {
  Case one;
  size_t inputs = 0;
  line >> one.variant >> inputs;
  one.inputs.resize(inputs);
  for (auto& dims : one.inputs) {
    size_t rank = 0;
    line >> rank;
    dims.resize(rank);
    for (auto& dim : dims) line >> dim;
  }
  return one;
}

Request read_request(const char* path) {
  Request request;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "library") request.library = next_string(line);
    if (word == "preload") request.preload.push_back(next_string(line));
    if (word == "tensorrt") line >> request.tensorrt;
    if (word == "outputs") line >> request.outputs;
    if (word == "attribute") request.attributes.push_back(read_attribute(line));
    if (word == "case") request.cases.push_back(read_case(line));
  }
  return request;
}

// ---- the answer --------------------------------------------------------------------------------------------------

std::string json_string(const char* text) {
  if (text == nullptr) return "null";
  std::string out = "\"";
  for (; *text != 0; ++text) {
    const auto c = static_cast<unsigned char>(*text);
    char escaped[8];
    if (c < 0x20 || c == '"' || c == '\\') {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

template <class Items, class Print>
std::string json_list(const Items& items, Print print) {
  std::string out = "[";
  for (const auto& item : items) out += (out.size() > 1 ? "," : "") + print(item);
  return out + "]";
}

std::string number(int64_t value) { return std::to_string(value); }
const char* truth(bool value) { return value ? "true" : "false"; }

int clamped(int32_t count) { return count < 0 ? 0 : count > 64 ? 64 : count; }

std::string types(const int32_t* dtypes, const int32_t* formats, int count) {
  std::string out = "[";
  for (int i = 0; i < count; ++i)
    out += (i ? ",[" : "[") + number(dtypes[i]) + "," + number(formats[i]) + "]";
  return out + "]";
}

std::string describe(const ytk_plugin_table& table) {
  std::string out = "{\"size\":" + number(table.size) + ",\"abi_version\":" + number(table.abi_version);
  out += ",\"namespace\":" + json_string(table.name_space) + ",\"name\":" + json_string(table.name);
  out += ",\"version\":" + json_string(table.version);
  out += ",\"inputs\":" + number(table.nin) + ",\"outputs\":" + number(table.nout) + ",\"variants\":[";
  for (int v = 0; v < clamped(table.variant_count); ++v) {
    const ytk_variant& variant = table.variants[v];
    out += (v ? ",{" : "{") + std::string("\"id\":") + json_string(variant.id);
    out += ",\"inputs\":" + types(variant.in_dtypes, variant.in_formats, clamped(table.nin));
    out += ",\"outputs\":" + types(variant.out_dtypes, variant.out_formats, clamped(table.nout)) + "}";
  }
  out += "],\"attributes\":[";
  for (int a = 0; a < clamped(table.attr_count); ++a) {
    const ytk_attr_decl& decl = table.attrs[a];
    out += (a ? ",[" : "[") + json_string(decl.name) + "," + number(decl.type) + "," + number(decl.required) + "]";
  }
  out += "],\"launch\":" + std::string(truth(table.launch != nullptr));
  out += ",\"shape\":" + std::string(truth(table.shape != nullptr));
  out += ",\"workspace\":" + std::string(truth(table.workspace != nullptr));
  return out + ",\"meta_digest\":" + json_string(table.meta_digest) + "}";
}

std::string call_shape(const ytk_plugin_table& table, const Case& one, const std::vector<ytk_attr>& attrs) {
  const ytk_variant& types = table.variants[one.variant];
  std::vector<ytk_tensor> in(one.inputs.size() + 1), out(static_cast<size_t>(clamped(table.nout)) + 1);
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    in[i].dtype = types.in_dtypes[i];
    in[i].format = types.in_formats[i];
    in[i].rank = static_cast<int32_t>(one.inputs[i].size());
    in[i].scale = 1.0f;
    for (size_t d = 0; d < one.inputs[i].size(); ++d) in[i].dims[d] = one.inputs[i][d];
  }
  ytk_context ctx{};
  ctx.size = sizeof ctx;
  ctx.abi_version = YTK_ABI_VERSION;
  ctx.variant = one.variant;
  ctx.threads = 1;
  ctx.attrs = attrs.empty() ? nullptr : attrs.data();
  ctx.attr_count = static_cast<int32_t>(attrs.size());
  const int status = table.shape(&ctx, in.data(), static_cast<int>(one.inputs.size()), out.data(), table.nout);
  out.pop_back();
  if (status != 0) out.clear();
  return "[" + number(status) + "," + json_list(out, [](const ytk_tensor& tensor) {
           std::vector<int64_t> dims(tensor.dims, tensor.dims + (tensor.rank < 0 || tensor.rank > YTK_MAX_RANK ? 0 : tensor.rank));
           return json_list(dims, number);
         }) + "]";
}

std::vector<ytk_attr> make_attributes(const std::deque<Attribute>& attributes) {
  std::vector<ytk_attr> made;
  for (const Attribute& a : attributes) {
    const size_t count = a.type == YTK_ATTR_INTS ? a.ints.size() : a.type == YTK_ATTR_FLOATS ? a.floats.size() : a.text.size();
    made.push_back({a.name.c_str(), a.type, static_cast<int32_t>(count), a.ints.data(), a.floats.data(), a.text.c_str()});
  }
  return made;
}

// ---- what a TensorRT would register ------------------------------------------------------------------------------------

// The attributes as a parser gives them: numbers of 32 bits.
struct Fields {
  std::deque<std::vector<int32_t>> ints;
  std::deque<std::vector<float>> floats;
  std::vector<nvinfer1::PluginField> fields;
  nvinfer1::PluginFieldCollection collection{};

  explicit Fields(const std::deque<Attribute>& attributes) {
    using Type = nvinfer1::PluginFieldType;
    for (const Attribute& a : attributes) {
      if (a.type == YTK_ATTR_STRING) {
        fields.emplace_back(a.name.c_str(), a.text.c_str(), Type::kCHAR, static_cast<int32_t>(a.text.size()));
      } else if (a.type == YTK_ATTR_INTS) {
        ints.emplace_back(a.ints.begin(), a.ints.end());
        fields.emplace_back(a.name.c_str(), ints.back().data(), Type::kINT32, static_cast<int32_t>(a.ints.size()));
      } else {
        floats.emplace_back(a.floats.begin(), a.floats.end());
        fields.emplace_back(a.name.c_str(), floats.back().data(), Type::kFLOAT32, static_cast<int32_t>(a.floats.size()));
      }
    }
    collection = {static_cast<int32_t>(fields.size()), fields.data()};
  }
};

std::string field_names(const nvinfer1::PluginFieldCollection* names) {
  std::string out = "[";
  for (int k = 0; names != nullptr && k < clamped(names->nbFields); ++k)
    out += (k ? ",[" : "[") + json_string(names->fields[k].name) + "," + number(static_cast<int32_t>(names->fields[k].type)) + "]";
  return out + "]";
}

template <class Creator>
std::string creator_json(const std::string& interface, Creator& creator, bool created) {
  return "{\"interface\":" + json_string(interface.c_str()) + ",\"namespace\":" + json_string(creator.getPluginNamespace()) +
         ",\"name\":" + json_string(creator.getPluginName()) + ",\"version\":" + json_string(creator.getPluginVersion()) +
         ",\"fields\":" + field_names(creator.getFieldNames()) + ",\"created\":" + truth(created) + "}";
}

std::string creators(void* handle, const Request& request) {
  const Fields fields(request.attributes);
  std::string out = "[";
  int32_t count = 0;
  if (request.tensorrt >= 10) {
    const auto list = reinterpret_cast<nvinfer1::IPluginCreatorInterface* const* (*)(int32_t&)>(dlsym(handle, "getCreators"));
    nvinfer1::IPluginCreatorInterface* const* found = list == nullptr ? nullptr : list(count);
    for (int k = 0; found != nullptr && k < clamped(count); ++k) {
      const nvinfer1::InterfaceInfo info = found[k]->getInterfaceInfo();
      const std::string interface = std::string(info.kind) + " " + number(info.major) + "." + number(info.minor);
      if (interface != "PLUGIN CREATOR_V3ONE 1.0") return "[{\"interface\":" + json_string(interface.c_str()) + "}]";
      auto& creator = *static_cast<nvinfer1::IPluginCreatorV3One*>(found[k]);
      nvinfer1::IPluginV3* plugin = creator.createPlugin("probe", &fields.collection, nvinfer1::TensorRTPhase::kBUILD);
      out += (k ? "," : "") + creator_json(interface, creator, plugin != nullptr);
      delete plugin;
    }
  } else {
    const auto list = reinterpret_cast<Creator86* const* (*)(int32_t&)>(dlsym(handle, "getPluginCreators"));
    Creator86* const* found = list == nullptr ? nullptr : list(count);
    for (int k = 0; found != nullptr && k < clamped(count); ++k) {
      // The object is left to the end of the process: its destroy() is far down the interface, which is not declared here.
      const bool created = found[k]->createPlugin("probe", &fields.collection) != nullptr;
      out += (k ? "," : "") + creator_json("IPluginCreator", *found[k], created);
    }
  }
  return out + "]";
}

std::string problem(const std::string& text) { return "{\"problem\":" + json_string(text.c_str()) + "}"; }

std::string answer(const Request& request) {
  for (const std::string& path : request.preload)
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) return problem(dlerror());
  void* handle = dlopen(request.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return problem(dlerror());
  const auto entry = reinterpret_cast<const ytk_plugin_table* (*)()>(dlsym(handle, "ytk_plugin"));
  if (entry == nullptr) return problem(dlerror());
  const ytk_plugin_table* table = entry();
  if (table == nullptr) return problem("ytk_plugin() returned NULL");
  if (table->abi_version != YTK_ABI_VERSION || table->size < sizeof *table)
    return problem("ytk_plugin() speaks ABI " + number(table->abi_version) + " with a table of " + number(table->size) +
                   " bytes; this host speaks ABI " + number(YTK_ABI_VERSION) + ", " + number(sizeof *table) + " bytes");
  std::string shapes = "[]";
  if (table->shape != nullptr && table->nout == request.outputs) {
    const std::vector<ytk_attr> attrs = make_attributes(request.attributes);
    shapes = json_list(request.cases, [&](const Case& one) { return call_shape(*table, one, attrs); });
  }
  const std::string registered = request.tensorrt == 0 ? "[]" : creators(handle, request);
  return "{\"table\":" + describe(*table) + ",\"shapes\":" + shapes + ",\"creators\":" + registered + "}";
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string text = answer(read_request(argv[1]));
  std::ofstream file(argv[2]);
  file << text;
  file.close();
  return file ? 0 : 3;
}
