// In place of NVIDIA's driver where cuDNN only plans: what it looks for there, and the little that
// it asks. Built as libcuda.so.1.

namespace {

long handle = 0;

}  // namespace

#define JACKSCREW_STUB(name) \
  int name() {               \
    return 0;                \
  }
#define JACKSCREW_STUB_OF_HANDLE(name) \
  int name(void** to) {                \
    *to = &handle;                     \
    return 0;                          \
  }

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

JACKSCREW_STUB_OF_HANDLE(cuKernelGetFunction)
JACKSCREW_STUB_OF_HANDLE(cuLibraryGetKernel)
JACKSCREW_STUB_OF_HANDLE(cuLibraryLoadData)
JACKSCREW_STUB_OF_HANDLE(cuLibraryLoadFromFile)

JACKSCREW_STUB(cuCtxGetCurrent)
JACKSCREW_STUB(cuCtxGetLimit)
JACKSCREW_STUB(cuCtxPopCurrent)
JACKSCREW_STUB(cuCtxPushCurrent)
JACKSCREW_STUB(cuDeviceGet)
JACKSCREW_STUB(cuDeviceGetCount)
JACKSCREW_STUB(cuGetErrorName)
JACKSCREW_STUB(cuGetErrorString)
JACKSCREW_STUB(cuKernelGetAttribute)
JACKSCREW_STUB(cuKernelSetAttribute)
JACKSCREW_STUB(cuLaunchCooperativeKernel)
JACKSCREW_STUB(cuLaunchKernel)
JACKSCREW_STUB(cuLaunchKernelEx)
JACKSCREW_STUB(cuLibraryUnload)
JACKSCREW_STUB(cuLinkAddData)
JACKSCREW_STUB(cuLinkComplete)
JACKSCREW_STUB(cuLinkCreate)
JACKSCREW_STUB(cuLinkDestroy)
JACKSCREW_STUB(cuModuleGetFunction)
JACKSCREW_STUB(cuModuleLoadData)
JACKSCREW_STUB(cuModuleUnload)
JACKSCREW_STUB(cuOccupancyMaxPotentialClusterSize)
JACKSCREW_STUB(cuStreamGetCtx)
JACKSCREW_STUB(cuTensorMapEncodeIm2col)
JACKSCREW_STUB(cuTensorMapEncodeTiled)
}
