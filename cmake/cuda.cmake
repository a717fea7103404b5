# The cuda device: translates metal/*.metal to CUDA C++ at build time; the device has them compiled for the GPU that it
# finds when it is used. Building needs no CUDA: driver and compiler are opened at run time.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(lily_cuda_default ON)
else()
  set(lily_cuda_default OFF)
endif()
option(LILY_CUDA "Build the cuda device, which runs the Metal kernels on NVIDIA GPUs" ${lily_cuda_default})
if(NOT LILY_CUDA)
  return()
endif()

set(cuda_dir ${PROJECT_SOURCE_DIR}/src/lily_core/device/cuda)
file(GLOB cuda_device_sources CONFIGURE_DEPENDS ${cuda_dir}/*.cpp)
target_sources(lily_engine PRIVATE ${PROJECT_SOURCE_DIR}/src/lily_core/device/cuda.cpp ${cuda_device_sources})
target_compile_definitions(lily_engine PUBLIC LILY_HAS_CUDA)
target_link_libraries(lily_engine PUBLIC ${CMAKE_DL_LIBS})

file(GLOB cuda_tool_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/msl/*.py)
file(GLOB cuda_metal_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/metal/*.metal)
file(GLOB cuda_metal_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/metal/*.h)
file(GLOB cuda_msl_headers CONFIGURE_DEPENDS ${cuda_dir}/msl/*.h ${cuda_dir}/../msl/*.h)
list(FILTER cuda_metal_sources EXCLUDE REGEX "_tensor\\.metal$")  # tensor operations run on Apple GPUs only

set(cuda_kernels ${CMAKE_CURRENT_BINARY_DIR}/_cuda_kernels)
add_custom_command(
  OUTPUT ${cuda_kernels}/index.txt
  COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${PROJECT_SOURCE_DIR}/tools PYTHONDONTWRITEBYTECODE=1 ${Python_EXECUTABLE}
          -m msl cuda ${cuda_metal_sources} -o ${cuda_kernels} --compiler ${CMAKE_CXX_COMPILER}
  DEPENDS ${cuda_metal_sources} ${cuda_metal_headers} ${cuda_msl_headers} ${cuda_tool_sources}
  COMMENT "Translating the Metal kernels to CUDA C++" VERBATIM)
add_custom_target(cuda_kernels ALL DEPENDS ${cuda_kernels}/index.txt)
install(DIRECTORY ${cuda_kernels} DESTINATION lily)
