/*
 * In place of the driver for NVIDIA GPUs: "compiles" images that say how many arguments their kernel
 * has, and writes down what is launched. Memory is the host's.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {
std::string written;
int context_place, module_count = 0;
void* current = nullptr;

struct Kernel {
  std::string name;
  int arguments;
};
struct Module {
  std::string image;
};

void Write(const std::string& line) { written += line + "\n"; }
}  // namespace

extern "C" {

const char* written_down() {
  static std::string told;
  told = written;
  written.clear();
  return told.c_str();
}

int cuInit(unsigned) { return 0; }
int cuCtxGetCurrent(void** context) { *context = current; return 0; }
int cuCtxSetCurrent(void* context) { current = context; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  Write("retain " + std::to_string(device));
  *context = &context_place;
  return 0;
}
int cuCtxGetDevice(int* device) { *device = 0; return 0; }
int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 16 ? 4 : which == 75 ? 7 : 0;
  return 0;
}
int cuModuleLoadDataEx(void** module, const void* image, unsigned options, int* names,
                       void** values) {
  std::string text = static_cast<const char*>(image);
  if (text.find("broken") != std::string::npos) return 218;
  Write("load " + (options ? "registers " + std::to_string(reinterpret_cast<intptr_t>(values[0]))
                           : std::string("any")));
  *module = new Module{text};
  return 0;
}
int cuModuleGetFunction(void** kernel, void* module, const char* name) {
  const std::string& image = static_cast<Module*>(module)->image;
  const size_t at = image.find(" takes ");
  *kernel = new Kernel{name, std::atoi(image.c_str() + at + 7)};
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned by,
                   unsigned, unsigned, void* stream, void** arguments, void**) {
  const Kernel* kernel = static_cast<Kernel*>(function);
  std::string line = "launch " + kernel->name + " " + std::to_string(gx) + " " +
                     std::to_string(bx) + " " + std::to_string(by) + " stream " +
                     std::to_string(reinterpret_cast<intptr_t>(stream)) + " :";
  for (int i = 0; i < kernel->arguments; ++i)
    line += " " + std::to_string(*static_cast<int64_t*>(arguments[i]));
  Write(line);
  return 0;
}
int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  *address = reinterpret_cast<unsigned long long>(std::malloc(bytes));
  Write("allocate " + std::to_string(bytes) + " " + std::to_string(*address));
  return 0;
}
int cuMemFree_v2(unsigned long long address) {
  Write("free " + std::to_string(address));
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemsetD8Async(unsigned long long address, unsigned char value, size_t bytes, void*) {
  std::memset(reinterpret_cast<void*>(address), value, bytes);
  Write("zero " + std::to_string(address) + " " + std::to_string(bytes));
  return 0;
}
int cuGetErrorString(int, const char** told) { *told = "a PTX JIT compilation failed"; return 0; }
}
