# Row kernels (src/**/*.rows.h) are written once and compiled once per target; see
# src/kernels/row_kernel.h for what the generated files define.

set(JACKSCREW_CPU_TARGETS v3 v4)
set(JACKSCREW_FLAGS_v3 -march=x86-64-v3)
set(JACKSCREW_FLAGS_v4 -march=x86-64-v4 -mprefer-vector-width=512)
# Optimised in every configuration: without inlining, a helper compiled for one instruction set could
# be linked into code that runs on another.
set(JACKSCREW_ROW_FLAGS -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math)
# Where Clang does not vectorise a loop that asks for it, the kernel is slower, not wrong. Under sanitizers
# it spends minutes on a file at -O3, seconds at -O1, which inlines all that has no target in its name, too.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND JACKSCREW_ROW_FLAGS -Wno-pass-failed $<$<CONFIG:Debug>:-O1>)
endif()
# GCC 14, unlike 12, takes what one loop over a chunk writes and the next one reads for uninitialised.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  list(APPEND JACKSCREW_ROW_FLAGS -Wno-maybe-uninitialized)
endif()

function(jackscrew_write_if_different path content)
  if(EXISTS ${path})
    file(READ ${path} old)
    if(old STREQUAL content)
      return()
    endif()
  endif()
  file(WRITE ${path} "${content}")
endfunction()

# One generated source per row-kernel header and CPU target, and one that fills the tables. Sets
# JACKSCREW_ROW_CUDA_SOURCES to the sources for GPUs.
function(jackscrew_add_row_kernels target)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.rows.h)
  set(entry kernels/no_cuda/row_entry.h)
  if(JACKSCREW_HAS_CUDA)
    set(entry kernels/cuda/row_entry.h)
  endif()
  set(cuda_sources)
  foreach(header IN LISTS headers)
    file(RELATIVE_PATH relative ${CMAKE_SOURCE_DIR}/src ${header})
    string(REGEX REPLACE "[/.]" "_" stem ${relative})
    set(base ${CMAKE_BINARY_DIR}/rows/${stem})
    foreach(isa IN LISTS JACKSCREW_CPU_TARGETS)
      jackscrew_write_if_different(${base}_${isa}.cc
        "#define JACKSCREW_ROW_TARGET ${isa}\n#include \"kernels/row_cpu.h\"\n#include \"${relative}\"\n")
      set_source_files_properties(${base}_${isa}.cc PROPERTIES
        COMPILE_OPTIONS "${JACKSCREW_ROW_FLAGS};${JACKSCREW_FLAGS_${isa}}")
      target_sources(${target} PRIVATE ${base}_${isa}.cc)
    endforeach()
    jackscrew_write_if_different(${base}_table.cc
      "#include \"${entry}\"\n#include \"kernels/row_table.h\"\n#include \"${relative}\"\n")
    target_sources(${target} PRIVATE ${base}_table.cc)
    jackscrew_write_if_different(${base}.cu
      "#include \"kernels/cuda/row_cuda.cuh\"\n#include \"${relative}\"\n")
    list(APPEND cuda_sources ${base}.cu)
  endforeach()
  set(JACKSCREW_ROW_CUDA_SOURCES ${cuda_sources} PARENT_SCOPE)
endfunction()

# Other CPU code compiled once per instruction set: src/**/*.isa.cc, in namespace JACKSCREW_ISA.
function(jackscrew_add_isa_sources target)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.isa.cc)
  foreach(source IN LISTS sources)
    file(RELATIVE_PATH relative ${CMAKE_SOURCE_DIR}/src ${source})
    string(REGEX REPLACE "[/.]" "_" stem ${relative})
    foreach(isa IN LISTS JACKSCREW_CPU_TARGETS)
      set(generated ${CMAKE_BINARY_DIR}/rows/${stem}_${isa}.cc)
      jackscrew_write_if_different(${generated}
        "#define JACKSCREW_ISA ${isa}\n#include \"${relative}\"\n")
      set_source_files_properties(${generated} PROPERTIES
        COMPILE_OPTIONS "${JACKSCREW_ROW_FLAGS};${JACKSCREW_FLAGS_${isa}}")
      target_sources(${target} PRIVATE ${generated})
    endforeach()
  endforeach()
endfunction()
