# The doubles of libcuda and libnccl, and broken editions of them that lack some symbols.
set(double_dir ${CMAKE_CURRENT_LIST_DIR})

function(tfddl_add_double_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -Wall -Wextra -UNDEBUG)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET default UNITY_BUILD ${TFDDL_UNITY})
endfunction()

# The library of these objects, without the symbols named after them.
function(tfddl_add_double name objects)
  add_library(${name} SHARED $<TARGET_OBJECTS:${objects}>)
  # Each finds the other beside itself; CMake's own run paths are off.
  target_link_options(${name} PRIVATE "-Wl,-rpath,\$ORIGIN")
  target_link_libraries(${name} PRIVATE Threads::Threads)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  if(ARGN)
    string(REPLACE ";" "; " hidden "${ARGN}")
    set(map ${CMAKE_CURRENT_BINARY_DIR}/${name}.map)
    file(WRITE ${map} "{ local: ${hidden}; };\n")
    target_link_options(${name} PRIVATE -Wl,--version-script=${map})
  endif()
endfunction()

# What a test needs that calls the doubles; their paths for the product's loader are below TFDDL_FAKE_DIR.
function(tfddl_use_doubles name)
  target_link_libraries(${name} PRIVATE tfddl_fake_nccl tfddl_fake_cuda)
  target_link_options(${name} PRIVATE -Wl,-rpath,$<TARGET_FILE_DIR:tfddl_fake_cuda>)
  target_compile_definitions(${name} PRIVATE TFDDL_FAKE_DIR="${CMAKE_CURRENT_BINARY_DIR}")
  add_dependencies(${name} tfddl_fake_cuda_broken tfddl_fake_nccl_broken tfddl_fake_nccl_old)
endfunction()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${double_dir}/cuda/cuda_*.cc ${double_dir}/cuda/stream.cc ${double_dir}/control.cc)
file(GLOB nccl_sources CONFIGURE_DEPENDS ${double_dir}/nccl/*.cc)
tfddl_add_double_objects(tfddl_fake_cuda_objects ${cuda_sources})
tfddl_add_double_objects(tfddl_fake_nccl_objects ${nccl_sources})

tfddl_add_double(tfddl_fake_cuda tfddl_fake_cuda_objects)
tfddl_add_double(tfddl_fake_cuda_broken tfddl_fake_cuda_objects cuStreamWaitEvent)
tfddl_add_double(tfddl_fake_nccl tfddl_fake_nccl_objects)
tfddl_add_double(tfddl_fake_nccl_broken tfddl_fake_nccl_objects ncclAllReduce)
# As of 2.13: no configuration, so nothing non-blocking.
tfddl_add_double(tfddl_fake_nccl_old tfddl_fake_nccl_objects ncclCommInitRankConfig ncclCommFinalize ncclCommSplit)
foreach(name tfddl_fake_nccl tfddl_fake_nccl_broken tfddl_fake_nccl_old)
  target_link_libraries(${name} PRIVATE tfddl_fake_cuda)
endforeach()

# What shows the doubles' GPUs to TensorFlow.
if(TFDDL_TF_INCLUDE)
  add_library(tfddl_fake_gpu SHARED ${double_dir}/cuda/gpu_plugin.cc)
  target_include_directories(tfddl_fake_gpu PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_include_directories(tfddl_fake_gpu SYSTEM PRIVATE ${TFDDL_TF_INCLUDE})
  target_compile_options(tfddl_fake_gpu PRIVATE -Wall -Wextra)
  set_target_properties(tfddl_fake_gpu PROPERTIES CXX_VISIBILITY_PRESET default)
  target_link_options(tfddl_fake_gpu PRIVATE "-Wl,-rpath,\$ORIGIN")
  target_link_libraries(tfddl_fake_gpu PRIVATE tfddl_fake_cuda ${TFDDL_TF_LIBRARY})
endif()
