# Names what the bits of a GPU's states depend on besides the device: a digest of the kernels, of the headers that
# translate them, and of the passes that launch them. Saved states carry it.
set(core ${PROJECT_SOURCE_DIR}/src/lily_core)
file(GLOB gpu_arithmetic_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/metal/*.metal ${PROJECT_SOURCE_DIR}/metal/*.h
  ${core}/gpu/*.cpp ${core}/gpu/*.h ${core}/device/msl/*.h ${core}/device/*/msl/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${gpu_arithmetic_sources})
set(gpu_arithmetic "")
foreach(source IN LISTS gpu_arithmetic_sources)
  file(SHA256 ${source} digest)
  string(APPEND gpu_arithmetic ${digest})
endforeach()
string(SHA256 gpu_arithmetic ${gpu_arithmetic})
string(SUBSTRING ${gpu_arithmetic} 0 12 gpu_arithmetic)
set_source_files_properties(src/lily_core/bind/model.cpp PROPERTIES COMPILE_DEFINITIONS
  LILY_GPU_ARITHMETIC="${gpu_arithmetic}")
