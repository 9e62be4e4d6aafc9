"""Compiled from processor/extensions/deeprec/*.proto: one serialized FileDescriptorProto each, imports first.

Written by `make -C loadtest protos`; do not edit.
"""

# fmt: off

FILES = (
    # predict.proto
    b'\n\rpredict.proto\x12\x0etensorf'
    b'low.eas"\x1e\n\nArrayShape\x12\x10\n'
    b'\x03dim\x18\x01 \x03(\x03R\x03dim"\xaa\x02\n\nArra'
    b'yProto\x123\n\x05dtype\x18\x01 \x01(\x0e2\x1d.'
    b'tensorflow.eas.ArrayData'
    b'TypeR\x05dtype\x12;\n\x0barray_sha'
    b'pe\x18\x02 \x01(\x0b2\x1a.tensorflow.ea'
    b's.ArrayShapeR\narrayShape'
    b'\x12\x1b\n\tfloat_val\x18\x03 \x03(\x02R\x08flo'
    b'atVal\x12\x1d\n\ndouble_val\x18\x04 \x03('
    b'\x01R\tdoubleVal\x12\x17\n\x07int_val\x18'
    b'\x05 \x03(\x05R\x06intVal\x12\x1d\n\nstring_'
    b'val\x18\x06 \x03(\x0cR\tstringVal\x12\x1b\n\t'
    b'int64_val\x18\x07 \x03(\x03R\x08int64Va'
    b'l\x12\x19\n\x08bool_val\x18\x08 \x03(\x08R\x07boo'
    b'lVal"\xf7\x01\n\x0ePredictRequest\x12'
    b'%\n\x0esignature_name\x18\x01 \x01(\tR'
    b'\rsignatureName\x12B\n\x06inputs'
    b'\x18\x02 \x03(\x0b2*.tensorflow.eas.'
    b'PredictRequest.InputsEnt'
    b'ryR\x06inputs\x12#\n\routput_fil'
    b'ter\x18\x03 \x03(\tR\x0coutputFilter\x1a'
    b'U\n\x0bInputsEntry\x12\x10\n\x03key\x18\x01 '
    b'\x01(\tR\x03key\x120\n\x05value\x18\x02 \x01(\x0b2'
    b'\x1a.tensorflow.eas.ArrayPr'
    b'otoR\x05value:\x028\x01"\xb1\x01\n\x0fPredi'
    b'ctResponse\x12F\n\x07outputs\x18\x01 '
    b'\x03(\x0b2,.tensorflow.eas.Pre'
    b'dictResponse.OutputsEntr'
    b'yR\x07outputs\x1aV\n\x0cOutputsEnt'
    b'ry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x120\n\x05'
    b'value\x18\x02 \x01(\x0b2\x1a.tensorflow'
    b'.eas.ArrayProtoR\x05value:\x02'
    b'8\x01*\xba\x02\n\rArrayDataType\x12\x0e\n\n'
    b'DT_INVALID\x10\x00\x12\x0c\n\x08DT_FLOAT'
    b'\x10\x01\x12\r\n\tDT_DOUBLE\x10\x02\x12\x0c\n\x08DT_'
    b'INT32\x10\x03\x12\x0c\n\x08DT_UINT8\x10\x04\x12\x0c\n'
    b'\x08DT_INT16\x10\x05\x12\x0b\n\x07DT_INT8\x10\x06'
    b'\x12\r\n\tDT_STRING\x10\x07\x12\x10\n\x0cDT_CO'
    b'MPLEX64\x10\x08\x12\x0c\n\x08DT_INT64\x10\t\x12'
    b'\x0b\n\x07DT_BOOL\x10\n\x12\x0c\n\x08DT_QINT8'
    b'\x10\x0b\x12\r\n\tDT_QUINT8\x10\x0c\x12\r\n\tDT_'
    b'QINT32\x10\r\x12\x0f\n\x0bDT_BFLOAT16\x10'
    b'\x0e\x12\r\n\tDT_QINT16\x10\x0f\x12\x0e\n\nDT_Q'
    b'UINT16\x10\x10\x12\r\n\tDT_UINT16\x10\x11\x12'
    b'\x11\n\rDT_COMPLEX128\x10\x12\x12\x0b\n\x07DT'
    b'_HALF\x10\x13b\x06proto3',
)
