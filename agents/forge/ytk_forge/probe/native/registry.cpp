// The real plugin registry's process for libraries of another machine: `registry LEAN DRIVER PLUGIN NAMESPACE NAME VERSION ANSWER`.
// What registry_child.py does with TensorRT's Python package, where there is none: it loads PLUGIN into the registry of LEAN
// (libnvinfer_lean.so) and writes what is new there as JSON. Compiled by the toolchain's compiler, run by its emulator.
#include <NvInferRuntime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>

namespace {

std::string quoted(const char* text) {
  std::string out = "\"";
  for (const char* at = text == nullptr ? "" : text; *at != 0; ++at) {
    const unsigned char c = static_cast<unsigned char>(*at);
    char escape[8];
    if (c == '"' || c == '\\' || c < 0x20) {
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += *at;
    }
  }
  return out + "\"";
}

template <class Creator>
std::string described(Creator& creator) {
  std::string out = "[" + quoted(creator.getPluginNamespace()) + "," + quoted(creator.getPluginName()) + "," + quoted(creator.getPluginVersion()) + ",[";
  const nvinfer1::PluginFieldCollection* fields = creator.getFieldNames();
  for (int32_t k = 0; fields != nullptr && k < fields->nbFields; ++k)
    out += std::string(k == 0 ? "" : ",") + "[" + quoted(fields->fields[k].name) + "," + std::to_string(static_cast<int>(fields->fields[k].type)) + "]";
  return out + "]]";
}

int fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, dlerror());
  return 3;
}

} // namespace

int main(int, char** argv) {
  const char *lean = argv[1], *driver = argv[2], *plugin = argv[3], *space = argv[4], *name = argv[5], *version = argv[6];
  if (dlopen(driver, RTLD_NOW | RTLD_GLOBAL) == nullptr) return fail("the driver's stand-in");
  void* library = dlopen(lean, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return fail("tensorrt-lean");
  auto get = reinterpret_cast<nvinfer1::IPluginRegistry* (*)()>(dlsym(library, "getPluginRegistry"));
  if (get == nullptr) return fail("getPluginRegistry");
  nvinfer1::IPluginRegistry& registry = *get();
  int32_t count = 0;
  auto* before = registry.getAllCreators(&count);
  const std::set<const void*> known(before, before + count);
  registry.loadLibrary(plugin);
  std::string creators;
  auto* after = registry.getAllCreators(&count);
  for (int32_t k = 0; k < count; ++k) {
    if (known.count(after[k]) != 0) continue;
    const bool v3 = std::strcmp(after[k]->getInterfaceInfo().kind, "PLUGIN CREATOR_V3ONE") == 0;
    creators += creators.empty() ? "" : ",";
    creators += v3 ? described(static_cast<nvinfer1::IPluginCreatorV3One&>(*after[k])) : "[\"\",\"another interface\",\"\",[]]";
  }
  const std::string other_space = std::string(space) + "x", other_name = std::string(name) + "x", other_version = std::string(version) + "x";
  auto found = [&](const char* n, const char* v, const char* s) { return registry.getCreator(n, v, s) != nullptr ? "true" : "false"; };
  std::FILE* answer = std::fopen(argv[7], "w");
  if (answer == nullptr) return 4;
  std::fprintf(answer, "{\"creators\":[%s],\"found\":%s,\"strangers\":[%s,%s,%s]}", creators.c_str(), found(name, version, space),
               found(name, version, other_space.c_str()), found(name, other_version.c_str(), space), found(other_name.c_str(), version, space));
  std::fclose(answer);
  // No orderly end: the registry takes creators apart whose library may be gone by then.
  _exit(0);
}
