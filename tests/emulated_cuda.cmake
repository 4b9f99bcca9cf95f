# The code for GPUs as plain C++, on an emulation of the runtime, of blocks of threads, of cuBLASLt and
# of cuDNN: the rooms with arithmetic again, with make_test_ops() giving the Ops of the GPU, and
# tests/cuda. The objects come before the library, which therefore gives nothing of what they define.
file(GLOB emulated CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.c[cu]
  ${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_emulation/*.cc)
list(FILTER emulated EXCLUDE REGEX "src/kernels/cuda/(cublaslt|cudnn_attention)\\.cc$")
foreach(source IN LISTS JACKSCREW_ROW_CUDA_SOURCES)
  string(REGEX REPLACE "\\.cu$" "_emulated_table.cc" table ${source})
  file(STRINGS ${source} include REGEX "rows\\.h")
  jackscrew_write_if_different(${table}
    "#include \"kernels/cuda/row_entry.h\"\n#include \"kernels/row_table.h\"\n${include}\n")
  list(APPEND emulated ${source} ${table})
endforeach()
set_source_files_properties(${emulated} PROPERTIES LANGUAGE CXX)
add_library(cuda_emulated OBJECT ${emulated})
# Sources for GPUs and for the host define what row kernels are in two ways.
set_target_properties(cuda_emulated PROPERTIES UNITY_BUILD OFF)
target_link_libraries(cuda_emulated PRIVATE jackscrew_core)
target_include_directories(cuda_emulated BEFORE PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_emulation ${CMAKE_SOURCE_DIR})
# nvcc's pragmas; and GCC cannot see that a thread reads only what it has written itself.
target_compile_options(cuda_emulated PRIVATE -Wno-unknown-pragmas -Wno-maybe-uninitialized)
# A GPU refuses what lies where its type must not, a CPU does not: 16 bytes at a time, above all.
set(aligned -fsanitize=alignment -fno-sanitize-recover=alignment)
target_compile_options(cuda_emulated PRIVATE ${aligned})
set_source_files_properties(cuda/limits_test.cc PROPERTIES COMPILE_OPTIONS "${aligned}")
file(GLOB emulated_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*_test.cc ${CMAKE_CURRENT_SOURCE_DIR}/quant/*_test.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/products/*_test.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/optim/adamw_8bit_test.cc)
add_executable(test_cuda ${emulated_tests} main.cc $<TARGET_OBJECTS:cuda_emulated>)
target_link_libraries(test_cuda PRIVATE jackscrew_core GTest::gtest nlohmann_json::nlohmann_json)
target_include_directories(test_cuda PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_emulation ${CMAKE_SOURCE_DIR})
target_link_options(test_cuda PRIVATE ${aligned})
jackscrew_add_test_paths(test_cuda ${CMAKE_CURRENT_SOURCE_DIR})
jackscrew_compile_tests_quickly(test_cuda)
# Of the rooms' tests those that say something of a GPU, and those that a fiber can do in seconds.
set(emulated_filter Cuda* GpuParity.* GpuRun.* Methods/GpuRun* Models/GpuGolden* GpuRanks.* Recipes/GpuRanks*
  Attention.* GemmInt8.MatchesTheReference* GpuScale*
  GemmInt8.ExtremeCodes* GemmInt8.LongContractions Gemm.Matches* Gemm.FewRows Gemm.Rounds* Gemm.Refuses*
  SoftmaxCrossEntropy.* Reductions.* RmsNorm.* Rotary.* Swiglu.* Rows.* BlockValues.* DynamicMap.*
  GpuGeneration.* Models/GpuGeneration* Adamw8bitTest.MovesNoWeight* Nf4.* PlainFormat.* WeightTest.* GatherContributorTest.*
  Formats/BlockFormatTest.DecodesToTheGoldenBits*)
list(JOIN emulated_filter ":" emulated_filter)
jackscrew_add_slow_test(cuda.emulated.slow test_cuda "${emulated_filter}-*Threads*:*PlanTakes*")
