# Code for NVIDIA GPUs: whether it is built (JACKSCREW_CUDA), and how. nvcc is called by rules of our
# own: CMake's language CUDA would ask for more of a toolkit than nvcc and the static runtime, which
# are all that is needed.

set(JACKSCREW_CUDA AUTO CACHE STRING "Build for NVIDIA GPUs: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE JACKSCREW_CUDA PROPERTY STRINGS AUTO ON OFF)

# Machine code for Ampere (A100; GPUs of 8.6 run it too), Ada, Hopper and consumer Blackwell; and PTX,
# which the driver compiles at the first start, for what lies between and what comes.
set(JACKSCREW_CUDA_ARCHITECTURES 80 89 90 120 CACHE STRING
  "GPUs that machine code is built for, by compute capability")
set(JACKSCREW_CUDA_PTX 90)

# Sets JACKSCREW_NVCC_FLAGS.
function(jackscrew_set_nvcc_flags)
  execute_process(COMMAND ${JACKSCREW_NVCC} --list-gpu-code OUTPUT_VARIABLE known)
  set(flags -std=c++20 -O3 -I${CMAKE_SOURCE_DIR}/src --Werror all-warnings)
  foreach(architecture IN LISTS JACKSCREW_CUDA_ARCHITECTURES)
    if(known MATCHES "sm_${architecture}\n")
      list(APPEND flags -gencode arch=compute_${architecture},code=sm_${architecture})
    else()
      message(STATUS "CUDA: nothing is built for sm_${architecture}, which this nvcc does not know")
    endif()
  endforeach()
  list(APPEND flags -gencode arch=compute_${JACKSCREW_CUDA_PTX},code=compute_${JACKSCREW_CUDA_PTX})
  set(JACKSCREW_NVCC_FLAGS ${flags} PARENT_SCOPE)
endfunction()

# Where cuDNN's headers are, for attention=cudnn (src/kernels/cuda/cudnn_attention.cc): those of the
# system, or of script/setup --cuda-headers. The library is looked for by the program.
# Sets JACKSCREW_HAS_CUDNN and JACKSCREW_CUDNN_INCLUDES.
function(jackscrew_find_cudnn)
  set(JACKSCREW_HAS_CUDNN FALSE PARENT_SCOPE)
  set(includes)
  foreach(header cudnn_frontend.h cudnn_version.h nvrtc.h)
    find_path(JACKSCREW_INCLUDE_${header} ${header}
      HINTS ${JACKSCREW_CUDA_INCLUDE} ${CMAKE_SOURCE_DIR}/.cache/cuda-headers/include)
    if(NOT JACKSCREW_INCLUDE_${header})
      message(STATUS "cuDNN: not built, since ${header} is not found (script/setup --cuda-headers)")
      return()
    endif()
    list(APPEND includes ${JACKSCREW_INCLUDE_${header}})
  endforeach()
  file(STRINGS ${JACKSCREW_INCLUDE_cudnn_version.h}/cudnn_version.h version REGEX "define CUDNN_M(AJ|IN)OR")
  string(REGEX MATCHALL "[0-9]+" version "${version}")
  string(JOIN "." version ${version})
  if(NOT version VERSION_GREATER_EQUAL 9.24)
    message(STATUS "cuDNN: not built, since its headers are of ${version}, and 9.24 is needed")
    return()
  endif()
  message(STATUS "cuDNN: headers of ${version}")
  list(REMOVE_DUPLICATES includes)
  set(JACKSCREW_HAS_CUDNN TRUE PARENT_SCOPE)
  set(JACKSCREW_CUDNN_INCLUDES ${includes} PARENT_SCOPE)
endfunction()

# Sets JACKSCREW_HAS_CUDA.
function(jackscrew_find_cuda)
  set(JACKSCREW_HAS_CUDA FALSE PARENT_SCOPE)
  if(JACKSCREW_CUDA STREQUAL "OFF")
    return()
  endif()
  find_program(JACKSCREW_NVCC nvcc HINTS /usr/local/cuda/bin)
  set(root /usr/local/cuda)
  if(JACKSCREW_NVCC)
    execute_process(COMMAND ${JACKSCREW_NVCC} -dryrun -c none.cu ERROR_VARIABLE said OUTPUT_QUIET)
    if(said MATCHES "_HERE_=([^\n]*)")
      get_filename_component(root ${CMAKE_MATCH_1} DIRECTORY)
    endif()
  endif()
  # The first that compiles C++20.
  set(least 12.0)
  if(JACKSCREW_NVCC)
    execute_process(COMMAND ${JACKSCREW_NVCC} --version OUTPUT_VARIABLE said)
    if(said MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_LESS least)
      if(JACKSCREW_CUDA STREQUAL "ON")
        message(FATAL_ERROR "JACKSCREW_CUDA=ON needs nvcc ${least} or later, "
          "and ${JACKSCREW_NVCC} is of ${CMAKE_MATCH_1}")
      endif()
      message(STATUS
        "CUDA: not built, since ${JACKSCREW_NVCC} is of ${CMAKE_MATCH_1}, and ${least} is needed")
      return()
    endif()
  endif()
  find_library(JACKSCREW_CUDART cudart_static HINTS ${root}
    PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
  find_path(JACKSCREW_CUDA_INCLUDE cuda_runtime_api.h HINTS ${root}
    PATH_SUFFIXES include targets/x86_64-linux/include)
  if(JACKSCREW_NVCC AND JACKSCREW_CUDART AND JACKSCREW_CUDA_INCLUDE)
    message(STATUS "CUDA: ${JACKSCREW_NVCC}")
    set(JACKSCREW_HAS_CUDA TRUE PARENT_SCOPE)
    jackscrew_set_nvcc_flags()
    set(JACKSCREW_NVCC_FLAGS ${JACKSCREW_NVCC_FLAGS} PARENT_SCOPE)
  elseif(JACKSCREW_CUDA STREQUAL "ON")
    message(FATAL_ERROR "JACKSCREW_CUDA=ON needs nvcc (${JACKSCREW_NVCC}), "
      "libcudart_static.a (${JACKSCREW_CUDART}) and cuda_runtime_api.h (${JACKSCREW_CUDA_INCLUDE})")
  else()
    message(STATUS "CUDA: not built, since nvcc or its runtime is not found")
  endif()
endfunction()

# Compiles the .cu of src/kernels/cuda and of the row kernels, and links them and the runtime.
function(jackscrew_add_cuda_objects target)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu)
  set(objects)
  foreach(source IN LISTS sources JACKSCREW_ROW_CUDA_SOURCES)
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    file(RELATIVE_PATH relative ${CMAKE_SOURCE_DIR} ${source})
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${JACKSCREW_NVCC} ${JACKSCREW_NVCC_FLAGS}
        -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d
      COMMENT "Compiling ${relative} for GPUs" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  add_custom_target(cuda_objects DEPENDS ${objects})
  target_sources(${target} PRIVATE ${objects})
  # These alone: all else is compiled alike with CUDA and without it.
  file(GLOB host_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cc)
  set_source_files_properties(${host_sources} PROPERTIES
    COMPILE_OPTIONS "-isystem;${JACKSCREW_CUDA_INCLUDE}")
  if(JACKSCREW_HAS_CUDNN)
    list(TRANSFORM JACKSCREW_CUDNN_INCLUDES PREPEND "-isystem;")
    # -O1: it builds cuDNN's graphs, once a run, from headers that take twice as long to compile at -O3.
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/kernels/cuda/cudnn_attention.cc PROPERTIES
      COMPILE_OPTIONS "${JACKSCREW_CUDNN_INCLUDES};-isystem;${JACKSCREW_CUDA_INCLUDE};$<$<CONFIG:Release>:-O1>")
  endif()
  target_link_libraries(${target} PUBLIC ${JACKSCREW_CUDART} pthread dl rt)
endfunction()
