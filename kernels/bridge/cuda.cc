/*
 * The driver is found when it is first needed: most machines have none. Its types and constants are
 * declared here, so that building needs no CUDA either.
 */
#include "cuda.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace graphopt {
namespace cuda {
namespace {

using Result = int;
using Context = void*;
using Module = void*;
using Kernel = void*;
using Address = unsigned long long;

constexpr int kJitMaxRegisters = 0;
constexpr int kProcessors = 16, kMajor = 75, kMinor = 76;

[[noreturn]] void Fail(const std::string& what) { throw std::runtime_error("graphopt: " + what); }

/* The functions of the driver that are used. */
struct Driver {
  Result (*init)(unsigned);
  Result (*current)(Context*);
  Result (*set_current)(Context);
  Result (*retain)(Context*, int);
  Result (*device)(int*);
  Result (*attribute)(int*, int, int);
  Result (*load)(Module*, const void*, unsigned, int*, void**);
  Result (*function)(Kernel*, Module, const char*);
  Result (*launch)(Kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**);
  Result (*allocate)(Address*, size_t);
  Result (*release)(Address);
  Result (*set_bytes)(Address, unsigned char, size_t, void*);
  Result (*told)(Result, const char**);

  Driver() {
    const char* wanted = std::getenv("GRAPHOPT_CUDA_DRIVER");
    const char* name = wanted ? wanted : "libcuda.so.1";
    void* library = dlopen(name, RTLD_NOW);
    if (!library) Fail(std::string("there is no driver for NVIDIA GPUs: ") + dlerror());
    Find(library, "cuInit", &init);
    Find(library, "cuCtxGetCurrent", &current);
    Find(library, "cuCtxSetCurrent", &set_current);
    Find(library, "cuDevicePrimaryCtxRetain", &retain);
    Find(library, "cuCtxGetDevice", &device);
    Find(library, "cuDeviceGetAttribute", &attribute);
    Find(library, "cuModuleLoadDataEx", &load);
    Find(library, "cuModuleGetFunction", &function);
    Find(library, "cuLaunchKernel", &launch);
    Find(library, "cuMemAlloc_v2", &allocate);
    Find(library, "cuMemFree_v2", &release);
    Find(library, "cuMemsetD8Async", &set_bytes);
    Find(library, "cuGetErrorString", &told);
    Check(init(0), "start");
  }

  template <typename Function>
  static void Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (!*function) Fail(std::string("the driver for NVIDIA GPUs has no ") + name);
  }

  void Check(Result result, const std::string& what) const {
    if (result == 0) return;
    const char* why = nullptr;
    told(result, &why);
    Fail("the GPU's driver cannot " + what + ": " +
         (why ? why : "error " + std::to_string(result)));
  }
};

const Driver& TheDriver() {
  static const Driver driver;
  return driver;
}

Context CurrentContext() {
  Context context = nullptr;
  TheDriver().Check(TheDriver().current(&context), "tell the current context");
  return context;
}

std::mutex kernels_mutex;
std::map<std::pair<Context, const char*>, Kernel> kernels;

/* The kernel in the calling thread's context, compiled by the driver for its GPU if it is new. */
Kernel Loaded(const Launch& launch) {
  std::lock_guard<std::mutex> lock(kernels_mutex);
  Kernel& kernel = kernels[{CurrentContext(), launch.image}];
  if (kernel) return kernel;
  const Driver& driver = TheDriver();
  Module module = nullptr;
  int options[] = {kJitMaxRegisters};
  void* values[] = {reinterpret_cast<void*>(launch.registers)};
  driver.Check(driver.load(&module, launch.image, launch.registers ? 1 : 0, options, values),
               std::string("load kernel ") + launch.entry);
  driver.Check(driver.function(&kernel, module, launch.entry),
               std::string("find kernel ") + launch.entry);
  return kernel;
}

/* Memory that launches on one stream use in turns; it grows. */
struct Workspace {
  std::mutex in_use;
  Address address = 0;
  int64_t size = 0;

  int64_t Reserve(int64_t bytes) {
    if (bytes > size) {
      const Driver& driver = TheDriver();
      // Freeing waits for the device, so nobody uses what is freed.
      if (address) driver.Check(driver.release(address), "free memory");
      address = 0;
      size = 0;
      driver.Check(driver.allocate(&address, bytes), "give " + std::to_string(bytes) + " bytes");
      size = bytes;
    }
    return static_cast<int64_t>(address);
  }
};

std::mutex workspaces_mutex;
std::map<std::pair<Context, void*>, std::unique_ptr<Workspace>> workspaces;

Workspace& WorkspaceOf(void* stream) {
  std::lock_guard<std::mutex> lock(workspaces_mutex);
  auto& found = workspaces[{CurrentContext(), stream}];
  if (!found) found.reset(new Workspace);
  return *found;
}

void Put(const Launch& launch, const int64_t* operands, int64_t workspace, void* stream) {
  std::vector<int64_t> arguments(launch.values, launch.values + launch.arguments);
  std::vector<void*> pointers;
  for (int64_t i = 0; i < launch.arguments; ++i) {
    if (launch.kinds[i] == kOperand) arguments[i] = operands[launch.values[i]];
    if (launch.kinds[i] == kWorkspace) arguments[i] += workspace;
    pointers.push_back(&arguments[i]);
  }
  const Driver& driver = TheDriver();
  driver.Check(driver.launch(Loaded(launch), launch.blocks, 1, 1, launch.threads_x,
                             launch.threads_y, 1, 0, stream, pointers.data(), nullptr),
               std::string("launch kernel ") + launch.entry);
}

}  // namespace

OwnLaunches::OwnLaunches(const Launches& given)
    : each_(given.launches, given.launches + given.count),
      launches_{given.workspace_bytes, given.count, each_.data()} {
  for (const Launch& launch : each_) {
    arguments_.insert(arguments_.end(), launch.kinds, launch.kinds + launch.arguments);
    arguments_.insert(arguments_.end(), launch.values, launch.values + launch.arguments);
  }
  const int64_t* at = arguments_.data();  // which moves no more
  for (Launch& launch : each_) {
    launch.kinds = at;
    launch.values = at + launch.arguments;
    at += 2 * launch.arguments;
  }
}

Device Current(int ordinal) {
  const Driver& driver = TheDriver();
  if (!CurrentContext()) {
    Context context = nullptr;
    driver.Check(driver.retain(&context, ordinal), "use GPU " + std::to_string(ordinal));
    driver.Check(driver.set_current(context), "use GPU " + std::to_string(ordinal));
  }
  int device = 0, found[3];
  driver.Check(driver.device(&device), "tell the GPU");
  const int wanted[] = {kProcessors, kMajor, kMinor};
  for (int i = 0; i < 3; ++i)
    driver.Check(driver.attribute(&found[i], wanted[i], device), "describe the GPU");
  return {found[0], found[1], found[2]};
}

void Run(const Launches& launches, const int64_t* operands, void* stream) {
  if (!launches.workspace_bytes) {
    for (int64_t i = 0; i < launches.count; ++i) Put(launches.launches[i], operands, 0, stream);
    return;
  }
  Workspace& workspace = WorkspaceOf(stream);
  // The launches of two calls must not alternate in one place.
  std::lock_guard<std::mutex> lock(workspace.in_use);
  const int64_t at = workspace.Reserve(launches.workspace_bytes);
  for (int64_t i = 0; i < launches.count; ++i) Put(launches.launches[i], operands, at, stream);
}

void Zero(int64_t address, int64_t bytes, void* stream) {
  if (!bytes) return;
  const Driver& driver = TheDriver();
  driver.Check(driver.set_bytes(static_cast<Address>(address), 0, bytes, stream), "zero memory");
}

}  // namespace cuda
}  // namespace graphopt

#pragma GCC visibility push(default)
extern "C" {

/* For tests and Python: as above. Return a message if that fails. */
const char* graphopt_cuda_device(int ordinal, int64_t* out) {
  static thread_local std::string told;
  try {
    const graphopt::cuda::Device found = graphopt::cuda::Current(ordinal);
    out[0] = found.processors;
    out[1] = found.major;
    out[2] = found.minor;
    return nullptr;
  } catch (const std::exception& error) {
    told = error.what();
    return told.c_str();
  }
}

/* A copy for whoever asked for these launches, who deletes it. */
const graphopt::cuda::OwnLaunches* graphopt_own_launches(const graphopt::cuda::Launches* launches) {
  return new graphopt::cuda::OwnLaunches(*launches);
}

const char* graphopt_cuda_run(const graphopt::cuda::Launches* launches, const int64_t* operands,
                              void* stream) {
  static thread_local std::string told;
  try {
    graphopt::cuda::Run(*launches, operands, stream);
    return nullptr;
  } catch (const std::exception& error) {
    told = error.what();
    return told.c_str();
  }
}
}
#pragma GCC visibility pop
